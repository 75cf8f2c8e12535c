"""Count what de-duplicated tool results save a coding agent that reads files again and again.

    python -m benchmarks.agents.reads --files ragboost --json

Sessions are generated from the real Python files of a folder with synthetic edits
(`benchmarks.agents.coding_traces`), and sent through the proxy step by step, with the whole history
each time, in the three wire formats with tool results. The backend is the tests' FakeEngine; tokens
are words and punctuation marks of all texts. Exits with 1 unless every request extends the previous
one of its session, and the original of every tool result is restored from the payload alone.
"""

import argparse
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from benchmarks.agents.coding_traces import STYLES, Step, generate_session, read_files
from benchmarks.command import make_parser, report, show_rows
from ragboost.config import DedupSettings, Settings
from ragboost.proxy.app import create_app
from ragboost.serving import serve_in_thread
from tests.fakes import FakeEngine
from tests.fakes.prefix_cache import tokenize

Message = dict[str, Any]
_TASK = "Make the failing test pass."
_WHOLE = re.compile(r"\[Same as tool result (\d+) above\.\]")
_PART = re.compile(
    r'\n\[Same text as in tool result (\d+) above, from "(.*?)" to "(.*?)", (\d+) characters\.\]\n'
)
ARMS = {
    "off": DedupSettings(),
    "passages": DedupSettings(passages=True),
    "passages_256": DedupSettings(passages=True, passage_min_bytes=256),
}


class Wire(NamedTuple):
    """A wire format: its path, the name of its list of messages, and a session's messages."""

    path: str
    name: str

    def messages(self, number: int, step: Step) -> list[Message]:
        """Return the messages of one step: the model's call, and the tool's result."""
        name, arguments, call = step.tool, json.dumps(step.arguments), f"call_{number}"
        if self.path == "/v1/responses":
            return [
                {"type": "function_call", "call_id": call, "name": name, "arguments": arguments},
                {"type": "function_call_output", "call_id": call, "output": step.result},
            ]
        if self.path == "/v1/messages":
            use = {"type": "tool_use", "id": call, "name": name, "input": dict(step.arguments)}
            text = {"type": "text", "text": step.result}
            result = {"type": "tool_result", "tool_use_id": call, "content": [text]}
            return [
                {"role": "assistant", "content": [use]},
                {"role": "user", "content": [result]},
            ]
        function = {"name": name, "arguments": arguments}
        calls = [{"id": call, "type": "function", "function": function}]
        return [
            {"role": "assistant", "content": None, "tool_calls": calls},
            {"role": "tool", "tool_call_id": call, "content": step.result},
        ]

    def result(self, message: Message) -> str:
        """Return the tool result of a step's second message."""
        content = message["output"] if self.path == "/v1/responses" else message["content"]
        if self.path == "/v1/messages":
            content = content[0]["content"][0]["text"]
        return str(content)


WIRES = {
    "chat": Wire("/v1/chat/completions", "messages"),
    "anthropic": Wire("/v1/messages", "messages"),
    "responses": Wire("/v1/responses", "input"),
}


def main() -> None:
    options = parse(sys.argv[1:])
    files = read_files(options.files)
    if len(files) < options.task_files:
        sys.exit(f"{options.files} has {len(files)} Python files of 4 to 16 KB; 4 are needed")
    rows = measure(files, options)
    result = {"files": len(files), "sessions": options.sessions, "rows": rows}
    report(result, options, show)
    if not all(row["is_extending"] and row["is_restored"] for row in rows):
        sys.exit("a check failed")


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--files", type=Path, default=Path("ragboost"), help="folder of sources")
    parser.add_argument("--sessions", type=int, default=8, help="sessions of each style")
    parser.add_argument("--steps", type=int, default=30, help="tool calls of a session")
    parser.add_argument("--task-files", type=int, default=4, help="files of a session")
    parser.add_argument("--seed", type=int, default=1, help="of the first session")
    return parser.parse_args(arguments)


def measure(files: Mapping[str, str], options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return a row for each way to show files, wire format and arm."""
    rows = []
    for style in STYLES:
        sessions = [
            generate_session(
                files,
                style=style,
                seed=options.seed + number,
                num_steps=options.steps,
                num_files=options.task_files,
            )
            for number in range(options.sessions)
        ]
        for wire_name, wire in WIRES.items():
            by_arm = {arm: replay(sessions, wire, dedup) for arm, dedup in ARMS.items()}
            for arm, figures in by_arm.items():
                saved = {
                    f"{name}_saved": round(1 - figures[name] / by_arm["off"][name], 4)
                    for name in ("prompt_tokens", "prefill_tokens")
                }
                rows.append({"style": style, "wire": wire_name, "arm": arm, **figures, **saved})
    return rows


def replay(sessions: Sequence[list[Step]], wire: Wire, dedup: DedupSettings) -> dict[str, Any]:
    """Send every step of every session, and count what the backend received."""
    sent: list[list[list[Message]]] = []
    with FakeEngine() as engine:
        app = create_app(Settings(backend={"url": engine.url}, dedup=dedup))
        with serve_in_thread(app) as url, httpx.Client(base_url=url, timeout=120) as client:
            for steps in sessions:
                payloads = []
                for body in _bodies(steps, wire):
                    client.post(wire.path, json=body).raise_for_status()
                    payloads.append(engine.requests[-1].json[wire.name])
                sent.append(payloads)
    prompt = prefill = references = 0
    is_extending = is_restored = True
    for steps, payloads in zip(sessions, sent, strict=True):
        last: list[Message] = []
        for messages in payloads:
            is_extending &= messages[: len(last)] == last
            prompt += sum(map(count_tokens, messages))
            prefill += sum(map(count_tokens, messages[len(last) :]))
            last = messages
        results = [wire.result(message) for message in last[2::2]]
        references += sum(len(_WHOLE.findall(r)) + len(_PART.findall(r)) for r in results)
        is_restored &= restore(results) == [step.result for step in steps]
    return {
        "requests": sum(map(len, sent)),
        "prompt_tokens": prompt,
        "prefill_tokens": prefill,
        "references": references,
        "is_extending": is_extending,
        "is_restored": is_restored,
    }


def _bodies(steps: Sequence[Step], wire: Wire) -> Iterator[dict[str, Any]]:
    """Yield the requests of a session; each has the whole history."""
    history: list[Message] = [{"role": "user", "content": _TASK}]
    for number, step in enumerate(steps):
        history += wire.messages(number, step)
        extra = {"max_tokens": 16} if wire.path == "/v1/messages" else {}
        yield {"model": "m", wire.name: history, **extra}


def restore(results: Sequence[str]) -> list[str]:
    """Restore tool results from what was sent; a reference that is not clear stays as it is."""
    return [_PART.sub(lambda found: _passage(found, results), _whole(r, results)) for r in results]


def _whole(result: str, results: Sequence[str]) -> str:
    found = _WHOLE.fullmatch(result)
    return results[int(found[1]) - 1] if found else result


def _passage(found: re.Match[str], results: Sequence[str]) -> str:
    """Return the one passage with the reference's first and last words and length."""
    source, size = results[int(found[1]) - 1], int(found[4])
    passages = [
        passage
        for start in range(len(source) - size + 1)
        if not source[start].isspace()
        and " ".join((passage := source[start : start + size])[:60].split()) == found[2]
        and " ".join(passage[-60:].split()) == found[3]
    ]
    return passages[0] if len(passages) == 1 else found[0]


def count_tokens(message: Message) -> int:
    """Count the words and punctuation marks of a message's texts."""
    return sum(map(_count, _strings(message)))


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _strings(each)


@lru_cache(maxsize=4096)
def _count(text: str) -> int:
    return len(tokenize(text))


def show(result: Mapping[str, Any]) -> None:
    show_rows(result["rows"], f"{result['sessions']} sessions of each style")


if __name__ == "__main__":
    main()
