"""Check that the cause and place of every cache miss are named, against known mutations.

    python -m benchmarks.agents.cache_breaks --data ../shared/data --files ragboost --json

Replays tau-bench (chat completions) and generated sessions of a coding agent (Anthropic messages)
through what the proxy looks at requests with; now and then a request is changed in one of the ways
of MUTATIONS before it is sent. The oracle knows where, and finds the byte by itself. Then measures
what `stable = "safe"` recovers at a simulated hosted API, and what a look at a request costs.
Exits with 1 unless at least 99 % of the causes are right, every position is, and 80 % of the
avoidable misses are recovered.
"""

import argparse
import copy
import itertools
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.agents.coding_traces import generate_session, read_files
from benchmarks.command import make_parser, report, show_rows
from benchmarks.datasets.conversations import read_traces
from ragboost.config import PriceSettings
from ragboost.hosted.cache_marks import CacheMarker
from ragboost.hosted.lint.causes import Cause
from ragboost.hosted.lint.comparison import PrefixBreak
from ragboost.hosted.lint.live import PrefixWatch
from ragboost.hosted.stable_order import StableOrder
from ragboost.rewriting.parsed_request import ParsedRequest, parse_request
from ragboost.tokens import DEFAULT_TOKENS_PER_BYTE
from tests.fakes.hosted_caches import BreakpointCache, blocks_of

Body = dict[str, Any]
Sessions = list[list[Body]]
_MARK = {"cache_control": {"type": "ephemeral"}}
# Within the message that differs, the linter counts its fields in an order of its own.
_NEAR_BYTES = 64
_STEP_S = 6.0


class Mutation(NamedTuple):
    """A change that breaks the prefix, or is known not to."""

    change: Callable[[Body, random.Random], str | None]  # returns the path; None: impossible here
    cause: Cause | None  # None: the prompt stays what it was
    is_setup: bool = False  # every request of the session has it, with another value each time


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of the data sets")
    parser.add_argument("--files", type=Path, default=Path("ragboost"), help="of the coding agent")
    parser.add_argument("--limit", type=int, default=100, help="sessions of each kind")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    result = run(args)
    report(result, args, _show)
    is_right = result["causes_right"] >= 0.99 and result["positions_right"] == result["positions"]
    least = min(
        share
        for row in result["mends"].values()
        for name, share in row.items()
        if name.startswith("recovered")
    )
    sys.exit(0 if is_right and least >= 0.8 else 1)


def run(args: argparse.Namespace) -> dict[str, Any]:
    workloads = {
        "taubench": tau_sessions(args.data / "taubench_airline_traces", args.limit),
        "coding agent": coding_sessions(args.files, args.limit),
    }
    rows = [
        score(name, sessions, kind, random.Random(f"{args.seed} {kind}"))
        for name, sessions in workloads.items()
        for kind in MUTATIONS
    ]
    tried = sum(row["tried"] for row in rows)
    return {
        "rows": rows,
        "tried": tried,
        "causes_right": round(sum(row["causes"] for row in rows) / tried, 5),
        "positions": sum(row["breaks"] for row in rows),
        "positions_right": sum(row["positions"] for row in rows),
        "mends": {name: recovered(each, args.seed) for name, each in workloads.items()},
        "cost": {name: cost(each) for name, each in workloads.items()},
    }


def _show(result: dict[str, Any]) -> None:
    show_rows(result["rows"], "Causes and positions")
    for name in ("mends", "cost"):
        show_rows([{"sessions": key, **row} for key, row in result[name].items()], name)
    print(f"causes right: {result['causes_right']:.2%} of {result['tried']:,}")


def tau_sessions(folder: Path, limit: int) -> Sessions:
    """Return the requests of each trace, as chat completions with the tools that it calls."""
    sessions = []
    for chat in read_traces(folder)[:limit]:
        tools = _tools(20, lambda tool: {"type": "function", "function": tool}, "parameters")
        messages: list[Body] = []
        bodies = []
        for new, _, answer in chat.steps:
            messages = [*messages, *new]
            bodies.append({"model": "m-1", "messages": messages, "tools": tools})
            messages = [*messages, answer]
        sessions.append(bodies)
    return sessions


def coding_sessions(files: Path, limit: int) -> Sessions:
    """Return the requests of generated sessions, as Anthropic messages."""
    texts, sessions = read_files(files), []
    system = "You are a careful programmer.\n" + "Follow the rules of the house.\n" * 120
    for seed in range(limit):
        messages: list[Body] = [{"role": "user", "content": f"Make test {seed} pass."}]
        tools, bodies = _tools(24, lambda tool: tool, "input_schema"), []
        for at, step in enumerate(
            generate_session(texts, style="numbered", seed=seed, num_steps=12)
        ):
            bodies.append({"model": "m-1", "system": system, "tools": tools, "messages": messages})
            call = f"toolu_{seed}_{at}"
            use = {"type": "tool_use", "id": call, "name": step.tool, "input": dict(step.arguments)}
            result = {"type": "tool_result", "tool_use_id": call, "content": step.result}
            messages = [
                *messages,
                {"role": "assistant", "content": [{"type": "text", "text": "Next step."}, use]},
                {"role": "user", "content": [result]},
            ]
        sessions.append(bodies)
    return sessions


def _tools(num: int, wrap: Callable[[Body], Body], schema: str) -> list[Body]:
    return [
        wrap(
            {
                "name": f"tool_{at:02}",
                "description": f"Does the thing number {at} with care and says what was done.",
                schema: {
                    "type": "object",
                    "properties": {
                        "path": {"type": "string", "description": "Where to do it."},
                        "limit": {"type": "integer", "minimum": at},
                    },
                    "required": ["path", "limit"],
                },
            }
        )
        for at in range(num)
    ]


def score(name: str, sessions: Sessions, kind: str, choose: random.Random) -> dict[str, Any]:
    """Send each session up to a step, and the next request with the mutation.

    Each session is a user's own: two traces of one task begin alike, and what is sent of the second
    may continue a mutation of the first further than its own last request.
    """
    mutation, watch = MUTATIONS[kind], PrefixWatch()
    tried = causes = breaks = positions = false = 0
    for user, session in enumerate(sessions):
        if len(session) < 4:
            continue
        at = choose.randrange(2, len(session) - 1)
        before: Body = {}
        for body in session[:at]:
            before = _prepared(body, mutation, choose)
            found = find(watch, before, user=user)
            false += found is not None and not mutation.is_setup
        after = copy.deepcopy(session[at])
        path = mutation.change(after, choose)
        if path is None:
            continue
        found = find(watch, after, user=user)
        tried += 1
        causes += (found.cause if found else None) == mutation.cause
        if mutation.cause is not None:
            breaks += 1
            byte = position(before, after, mutation.cause)
            is_near = found is not None and abs(found.equal_bytes - byte) <= _NEAR_BYTES
            positions += found is not None and found.path == path and is_near
    return {
        "sessions": name,
        "mutation": kind,
        "tried": tried,
        "causes": causes,
        "breaks": breaks,
        "positions": positions,
        "false": false,
    }


def _prepared(body: Body, mutation: Mutation, choose: random.Random) -> Body:
    if not mutation.is_setup:
        return body
    body = copy.deepcopy(body)
    mutation.change(body, choose)
    return body


def parse(body: Body, *, user: int = 0) -> ParsedRequest:
    headers = ((b"authorization", b"Bearer %d" % user),)
    return parse_request(json.dumps(body).encode(), headers, formats=())


def find(watch: PrefixWatch, body: Body, *, user: int) -> PrefixBreak | None:
    comparison = watch.observe(parse(body, user=user))
    if comparison is None:
        return None
    found = comparison.run()
    ratio = DEFAULT_TOKENS_PER_BYTE
    is_said = watch.report(comparison, found, model="m", tokens_per_byte=ratio) is not None
    return found if is_said else None


def position(before: Body, after: Body, cause: Cause) -> int:
    """Return the byte of the prompt at which two bodies differ, found without the linter."""
    if cause is Cause.MODEL:
        return 0
    olds, news = parts_of(before), parts_of(after)
    if cause is Cause.OPTIONS:
        return sum(len(part) for place, part in olds if place == "above")
    equal = 0
    for (_, old), (_, new) in zip(olds, news, strict=False):
        if old != new:
            same = itertools.takewhile(
                lambda pair: pair[0] == pair[1], zip(old.decode(), new.decode(), strict=False)
            )
            return equal + len("".join(a for a, _ in same).encode())
        equal += len(old)
    return equal


def parts_of(body: Body) -> list[tuple[str, bytes]]:
    above = [*body["tools"], *([body["system"]] if "system" in body else [])]
    parts = [("above", each) for each in above]
    parts += [("above" if m["role"] == "system" else "message", m) for m in body["messages"]]
    return [
        (place, (part if isinstance(part, str) else json.dumps(part, ensure_ascii=False)).encode())
        for place, part in parts
    ]


def recovered(sessions: Sessions, seed: int) -> dict[str, Any]:
    """Compare clients that shuffle tools and keys and set no breakpoint, as they are and with
    `stable = "safe"`, with what the cache could have read had they not.

    An engine reads the longest beginning, in blocks, of anything that it was sent; a hosted API
    reads for 5 minutes, and only what was written at breakpoints.
    """
    choose, now = random.Random(seed), 0.0
    order = StableOrder()
    price = PriceSettings(model="m", input=3.0)
    marker = CacheMarker("anthropic", [price], clock=lambda: now)
    lifetimes = {"": 300.0, "5m": 300.0, "1h": 3600.0}
    hosted = {arm: BreakpointCache(lifetimes, 20) for arm in ("plain", "safe")}
    engine = {arm: _EngineCache() for arm in ("plain", "safe", "possible")}
    for session in sessions:
        for body in session:
            now += _STEP_S
            sent = shuffled(body, choose)
            mended = json.loads(order.apply(json.dumps(sent).encode()))
            for arm, each in (("plain", sent), ("safe", mended), ("possible", body)):
                engine[arm].send(each)
            hosted["plain"].send(sent, now)
            hosted["safe"].send(dict(marker.mark(mended, None)), now)
    most = engine["possible"].read
    return {
        "engine plain": engine["plain"].read,
        "engine safe": engine["safe"].read,
        "hosted plain": hosted["plain"].bill.read,
        "hosted safe": hosted["safe"].bill.read,
        "possible": most,
        "recovered by engine": _share(engine["plain"].read, engine["safe"].read, most),
        "recovered by hosted": _share(hosted["plain"].bill.read, hosted["safe"].bill.read, most),
    }


def _share(plain: int, safe: int, possible: int) -> float:
    return round((safe - plain) / (possible - plain), 4)


class _EngineCache:
    """Every prefix that it was sent, of whole blocks."""

    def __init__(self) -> None:
        self.read = 0
        self._keys: set[bytes] = set()

    def send(self, body: Body) -> None:
        blocks = list(blocks_of(body))
        self.read += max((b.tokens for b in blocks if b.key in self._keys), default=0)
        self._keys.update(block.key for block in blocks)


def shuffled(body: Body, choose: random.Random) -> Body:
    tools = [_other_keys(tool, choose) for tool in body["tools"]]
    choose.shuffle(tools)
    return {**body, "tools": tools}


def _other_keys(value: Any, choose: random.Random) -> Any:
    if isinstance(value, list):
        return [_other_keys(each, choose) for each in value]
    if not isinstance(value, dict):
        return value
    names = list(value)
    choose.shuffle(names)
    return {name: _other_keys(value[name], choose) for name in names}


def cost(sessions: Sessions, *, repeats: int = 7) -> dict[str, Any]:
    """Return the microseconds of a look at a request that continues its conversation: the least of
    all repeats of each request, over all requests."""
    requests = [parse(body) for session in sessions[:25] for body in session]
    least = [float("inf")] * len(requests)
    for _ in range(repeats):
        watch = PrefixWatch()
        for at, request in enumerate(requests):
            started = time.perf_counter()
            watch.observe(request)
            least[at] = min(least[at], time.perf_counter() - started)
    micros = sorted(1e6 * seconds for seconds in least)
    return {
        "requests": len(requests),
        "mean_kilobytes": round(statistics.mean(len(r.body.raw) for r in requests) / 1024, 1),
        "median_us": round(statistics.median(micros), 1),
        "p99_us": round(micros[int(len(micros) * 0.99)], 1),
    }


def _system(body: Body, edit: Callable[[str], str]) -> str:
    if "system" in body:
        body["system"] = edit(body["system"])
        return "system"
    body["messages"][0]["content"] = edit(body["messages"][0]["content"])
    return "messages[0]"


def _stamped(body: Body, choose: random.Random) -> str:
    stamp = (
        f"2026-11-{choose.randint(1, 28):02} {choose.randint(0, 23):02}:{choose.randrange(60):02}"
    )
    return _system(body, lambda text: f"Now: {stamp}\n{text}")


def _identified(body: Body, choose: random.Random) -> str:
    name = "".join(choose.choices("0123456789abcdef", k=32))
    uuid = "-".join([name[:8], name[8:12], name[12:16], name[16:20], name[20:]])
    return _system(body, lambda text: f"Trace {uuid}.\n{text}")


def _tool_order(body: Body, choose: random.Random) -> str | None:
    at, other = sorted(choose.sample(range(len(body["tools"])), 2))
    tools = body["tools"]
    tools[at], tools[other] = tools[other], tools[at]
    return f"tools[{at}]"


def _key_order(body: Body, choose: random.Random) -> str | None:
    at = choose.randrange(len(body["tools"]))
    body["tools"][at] = dict(reversed(body["tools"][at].items()))
    inner = body["tools"][at].get("function")
    if inner is not None:
        body["tools"][at]["function"] = dict(reversed(inner.items()))
    return f"tools[{at}]"


def _required_order(body: Body, choose: random.Random) -> str:
    at = choose.randrange(len(body["tools"]))
    tool = body["tools"][at] = copy.deepcopy(body["tools"][at])
    inner = tool.get("function", tool)
    inner["parameters" if "parameters" in inner else "input_schema"]["required"].reverse()
    return f"tools[{at}]"


def _tool_added(body: Body, choose: random.Random) -> str | None:
    at = choose.randrange(len(body["tools"]))
    tool = copy.deepcopy(body["tools"][at])
    tool.get("function", tool)["name"] = "another_tool"
    body["tools"].insert(at, tool)
    return f"tools[{at}]"


def _tool_removed(body: Body, choose: random.Random) -> str | None:
    at = choose.randrange(len(body["tools"]) - 1)
    del body["tools"][at]
    return f"tools[{at}]"


def _tool_edited(body: Body, choose: random.Random) -> str | None:
    at = choose.randrange(len(body["tools"]))
    tool = body["tools"][at]
    tool.get("function", tool)["description"] = "Does something else altogether."
    return f"tools[{at}]"


def _whitespace(body: Body, choose: random.Random) -> str | None:
    return _system(body, lambda text: text.replace("\n", "\n\n", 1))


def _trailing(body: Body, choose: random.Random) -> str | None:
    at = _text_message(body, choose)
    if at is None:
        return None
    body["messages"][at]["content"] += " \n"
    return f"messages[{at}]"


def _text_message(body: Body, choose: random.Random) -> int | None:
    """Return an earlier message whose content is a text."""
    places = [
        at
        for at, message in enumerate(body["messages"][:-3])
        if isinstance(message["content"], str)
        and message["content"].strip()
        and message["role"] != "system"
    ]
    return choose.choice(places) if places else None


def _model(body: Body, choose: random.Random) -> str | None:
    body["model"] = "m-2"
    return "model"


def _temperature(body: Body, choose: random.Random) -> str | None:
    body.update(temperature=choose.random(), max_tokens=choose.randrange(1000), stream=True)
    return ""


def _thinking(body: Body, choose: random.Random) -> str | None:
    body["thinking"] = {"type": "enabled", "budget_tokens": 2048}
    return "thinking"


def _edited(body: Body, choose: random.Random) -> str | None:
    at = _text_message(body, choose)
    if at is None:
        return None
    text = body["messages"][at]["content"]
    body["messages"][at]["content"] = text[: len(text) // 2] + " [someone changed the rest]"
    return f"messages[{at}]"


def _removed(body: Body, choose: random.Random) -> str | None:
    messages = body["messages"]
    first = 2 if messages[0]["role"] == "system" else 1
    if len(messages) < first + 6:
        return None
    at = choose.randrange(first, len(messages) - 5)
    del messages[at]
    return f"messages[{at}]"


def _swapped(body: Body, choose: random.Random) -> str | None:
    messages = body["messages"]
    first = 1 if messages[0]["role"] == "system" else 0
    if len(messages) < first + 6:  # the last ones were not sent before
        return None
    at = choose.randrange(first, len(messages) - 5)
    if messages[at] == messages[at + 2]:
        return None
    messages[at], messages[at + 2] = messages[at + 2], messages[at]
    return f"messages[{at}]"


def _other_fields(body: Body, choose: random.Random) -> str:
    """Write each message as another client does: fields in another order, nulls for absent ones."""
    body["messages"] = [
        {**dict(reversed(message.items())), "refusal": None} for message in body["messages"]
    ]
    return ""


def _parts(body: Body, choose: random.Random) -> str | None:
    at = _text_message(body, choose)
    if at is None:
        return None
    message = body["messages"][at]
    message["content"] = [{"type": "text", "text": message["content"]}]
    return ""


def _detail(body: Body, choose: random.Random) -> str:
    """Show an image in the first question, with one detail or the other."""
    at = 1 if body["messages"][0]["role"] == "system" else 0
    message = body["messages"][at]
    image = {"url": "data:image/png;base64,iVBORw0KGgo=", "detail": choose.choice(_DETAILS)}
    text = {"type": "text", "text": message["content"]}
    message["content"] = [text, {"type": "image_url", "image_url": image}]
    return f"messages[{at}]"


_DETAILS = [f"level-{number}" for number in range(1000)]


def _marked_last(body: Body, choose: random.Random) -> str | None:
    """Mark the last message, whichever that is: the mark moves on with every request."""
    message = body["messages"][-1]
    content = message["content"]
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else list(content)
    if not blocks:
        return None
    message["content"] = [*blocks[:-1], {**blocks[-1], **_MARK}]
    return ""


MUTATIONS: Mapping[str, Mutation] = {
    "keys of a tool": Mutation(_key_order, Cause.KEY_ORDER),
    "tools in another order": Mutation(_tool_order, Cause.TOOL_ORDER),
    "required parameters reversed": Mutation(_required_order, Cause.TOOL_LISTS),
    "tool added": Mutation(_tool_added, Cause.TOOLS),
    "tool removed": Mutation(_tool_removed, Cause.TOOLS),
    "tool edited": Mutation(_tool_edited, Cause.TOOLS),
    "time in the system prompt": Mutation(_stamped, Cause.TIME, is_setup=True),
    "uuid in the system prompt": Mutation(_identified, Cause.RANDOM_ID, is_setup=True),
    "whitespace": Mutation(_whitespace, Cause.WHITESPACE),
    "trailing whitespace": Mutation(_trailing, Cause.WHITESPACE),
    "another model": Mutation(_model, Cause.MODEL),
    "temperature only": Mutation(_temperature, None),
    "thinking": Mutation(_thinking, Cause.OPTIONS),
    "breakpoint moved on": Mutation(_marked_last, None, is_setup=True),
    "message edited": Mutation(_edited, Cause.MESSAGE),
    "message removed": Mutation(_removed, Cause.TRUNCATED),
    "messages swapped": Mutation(_swapped, Cause.MESSAGE_ORDER),
    "message fields in another order": Mutation(_other_fields, None),
    "image detail": Mutation(_detail, Cause.IMAGE, is_setup=True),
    "text as parts": Mutation(_parts, None),
}


if __name__ == "__main__":
    main()
