"""Count the messages that the proxy changes although they hold no documents.

    python -m benchmarks.proxy.false_alarms --data FOLDER --json

Sends lists that are not documents (`benchmarks.proxy.not_documents`) through `ragboost serve`, in
sequences in which their parts come back and shift: alone and in conversations that resend their
history, all shapes under one key. With `--data` also the tau-bench traces, turn by turn, and the
questions of the other sets as conversations. A message that reaches the backend with another text
is counted; it is counted as wrong unless all that changed is that elements of a tool result became
references to equal ones before.
"""

import argparse
import gzip
import itertools
import json
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.command import make_parser, report, show_rows
from benchmarks.proxy.not_documents import SHAPES, Items, ListShape
from benchmarks.proxy.recorded import RecordedProxy, recorded_proxy
from tests.fuzz.texts.oracle import difference

_REFERENCE = re.compile(
    r'Please refer to the document that begins with \\?".*?" in the previous conversation\.'
    r"|\[Same as tool result \d+ above\.\]"
)
_TAILS = ("\n\nNumber {}: what now?", "\n\nQuestion: what is number {}?", "\n")
_MAX_TURNS = 4
_EXAMPLES = 3
_QUERIES = 8  # of a set in one conversation
_MAX_QUERIES = 400  # of a set

Message = dict[str, Any]


@dataclass
class Counts:
    """Requests of one shape, and the different messages in them that were changed.

    Attributes:
        messages: requests, with one new message each.
        found: requests in which documents were found.
        changed: texts that were changed.
        wrong: of these, changed in another way than by references.
        examples: the first.
    """

    messages: int = 0
    found: int = 0
    changed: set[str] = field(default_factory=set)
    wrong: set[str] = field(default_factory=set)
    examples: list[dict[str, str]] = field(default_factory=list)

    def add(self, role: str, before: str, after: str) -> None:
        """Count a changed message."""
        if before in self.changed:
            return
        self.changed.add(before)
        is_right = role == "tool" and _is_deduplicated(before, after)
        if not is_right:
            self.wrong.add(before)
        if len(self.examples) < _EXAMPLES:
            seen = {"role": role, "difference": difference(before, after)}
            self.examples.append({**seen, "client": before, "backend": after})

    def figures(self) -> dict[str, Any]:
        """Return the counts."""
        counts = {"changed": len(self.changed), "wrong": len(self.wrong)}
        return {"messages": self.messages, "found": self.found, **counts, "examples": self.examples}


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--data", type=Path, help="directory with the data sets")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=3, help="applications of each shape and place")
    parser.add_argument("--requests", type=int, default=10, help="requests of one application")
    args = parser.parse_args()
    report(measure(args), args, show)


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Send everything, and compare what the backend receives."""
    counts: dict[str, Counts] = {}
    with recorded_proxy() as proxy:
        for seed in range(args.seed, args.seed + args.seeds):
            for shape, messages in _lists(seed, args.requests):
                _send(proxy, messages, counts.setdefault(shape, Counts()), key=f"lists-{seed}")
        if args.data:
            for name, messages in _data(args.data):
                _send(proxy, messages, counts.setdefault(name, Counts()), key="data")
    shapes = {name: each.figures() for name, each in sorted(counts.items())}
    fields = ("messages", "found", "changed", "wrong")
    total = {name: sum(shape[name] for shape in shapes.values()) for name in fields}
    return {"seed": args.seed, "total": total, "shapes": shapes}


def _send(proxy: RecordedProxy, messages: Sequence[Message], counts: Counts, *, key: str) -> None:
    exchange = proxy.post({"model": "m", "messages": messages}, key=key)
    received = json.loads(exchange.received)["messages"] if exchange.received else []
    if len(received) != len(messages):
        received = [{"content": f"status {exchange.status}"}] * len(messages)
    counts.messages += 1
    counts.found += exchange.num_documents > 0
    for mine, now in zip(messages, received, strict=True):
        if _text(mine) != _text(now):
            counts.add(mine["role"], _text(mine), _text(now))


def _lists(seed: int, requests: int) -> Iterator[tuple[str, list[Message]]]:
    """Yield the requests of all shapes in turn, each in a place and in a conversation or alone."""
    rng = random.Random(f"lists.{seed}")
    applications = [
        Application(rng, shape, place) for shape in SHAPES for place in (*shape.places, "talk")
    ]
    for number in range(requests):
        for application in applications:
            yield application.shape.name, application.ask(number)


class Application:
    """One application that sends a shape of lists.

    Args:
        rng: the only source of chance.
        shape: of its lists.
        place: role of the message with the list; `talk` is a conversation of the user.
    """

    def __init__(self, rng: random.Random, shape: ListShape, place: str) -> None:
        self.shape = shape
        self._place = place
        self._items = Items(rng, shape)
        self._tail = rng.choice(_TAILS)
        self._history: list[Message] = []

    def ask(self, number: int) -> list[Message]:
        """Return the messages of the next request."""
        listed, asked = self._items.draw(), self._tail.format(number)
        if self._place == "system":
            user = {"role": "user", "content": f"Number {number}, please."}
            return [{"role": "system", "content": listed}, user]
        if self._place == "tool":
            return [{"role": "user", "content": f"Show {number}."}, *_called(number, listed)]
        user = {"role": "user", "content": listed + asked}
        if self._place == "user":
            return [user]
        if number % _MAX_TURNS == 0:
            self._history = []
        messages = [*self._history, user]
        self._history = [*messages, {"role": "assistant", "content": "Done."}]
        return messages


def _called(number: int, result: str) -> list[Message]:
    function = {"name": "read", "arguments": "{}"}
    call = {"id": f"c{number}", "type": "function", "function": function}
    return [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": f"c{number}", "content": result},
    ]


def _data(folder: Path) -> Iterator[tuple[str, list[Message]]]:
    """Yield the requests of the traces and of the questions of each set."""
    yield from _traces(folder / "taubench_airline_traces")
    for path in sorted(folder.glob("*/queries.jsonl*")):
        yield from _questions(path)


def _traces(folder: Path) -> Iterator[tuple[str, list[Message]]]:
    texts = {row["id"]: row["text"] for row in _rows(folder / "corpus.jsonl.gz")}
    for trace in _rows(folder / "traces.jsonl.gz"):
        messages: list[Message] = []
        for at, message in enumerate(trace["messages"]):
            if message["role"] == "assistant" and messages:
                yield "tau-bench", list(messages)
            messages.append(_traced(message, texts, at))


def _traced(message: Message, texts: dict[str, str], at: int) -> Message:
    content = texts[message["doc_id"]] if "doc_id" in message else message["content"]
    made: Message = {"role": message["role"], "content": content}
    if message["role"] == "tool":
        made["tool_call_id"] = f"call-{at - 1}"
    if calls := message.get("tool_calls"):
        made["tool_calls"] = [
            {"id": f"call-{at}", "type": "function", "function": call} for call in calls
        ]
    return made


def _questions(path: Path) -> Iterator[tuple[str, list[Message]]]:
    """Yield conversations of questions alone, as a chat would ask them."""
    messages: list[Message] = []
    conversation = None
    for row in itertools.islice(_rows(path), _MAX_QUERIES):
        if row.get("conversation_id") != conversation or len(messages) >= 2 * _QUERIES:
            messages, conversation = [], row.get("conversation_id")
        messages.append({"role": "user", "content": row["question"]})
        yield f"questions of {path.parent.name}", list(messages)
        answers = row.get("answers") or ["I do not know."]
        messages.append({"role": "assistant", "content": str(answers[0])})


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    data = path.read_bytes()
    text = gzip.decompress(data) if path.suffix == ".gz" else data
    for line in text.splitlines():
        yield json.loads(line)


def _text(message: Message) -> str:
    content = message.get("content")
    return content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)


def _is_deduplicated(before: str, after: str) -> bool:
    """Say if only texts that became references differ."""
    pieces = _REFERENCE.split(after)
    pattern = ".+?".join(map(re.escape, pieces))
    return len(pieces) > 1 and bool(re.fullmatch(pattern, before, re.DOTALL))


def show(result: dict[str, Any]) -> None:
    rows = [
        {"shape": name, **{key: value for key, value in shape.items() if key != "examples"}}
        for name, shape in result["shapes"].items()
    ]
    show_rows([*rows, {"shape": "all", **result["total"]}])
    for name, shape in result["shapes"].items():
        for example in shape["examples"][:1]:
            print(f"{name}, {example['role']}: {example['difference']}")


if __name__ == "__main__":
    main()
