"""Measure what a turn of a long conversation costs the proxy, by its number.

    python -m benchmarks.agents.long_conversations --json

One conversation at a time, four documents a turn of which one came before; the app runs in this
process before a backend of negligible cost. Five ways to send it:

- `library`: `Booster.session(...).boost`, no proxy;
- `named`: the whole history and a session id, this turn's documents in the `ragboost` object;
- `sessions`: the session API, new turns only;
- `tags`: the whole history with its documents in tags, without a name;
- `resent`: the whole history without, and the documents of all turns in the `ragboost` object.

For each turn measured: the bytes that the backend gets, the bytecodes of our code (counts do not
depend on the machine), and the processor time of the process, the least of a few turns. What is not
our code, such as reading JSON and hashing, is in the time only.
"""

import asyncio
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from benchmarks.command import make_parser, report, show_rows
from benchmarks.proxy.mock_backend import Backend
from benchmarks.proxy.request_path import PathCounter
from ragboost import Booster
from ragboost.config import Settings
from ragboost.proxy.app import create_app

WAYS = ("library", "named", "sessions", "tags", "resent")
_CHAT = "/v1/chat/completions"
_NEW_PER_TURN = 3  # beside one that came before
_DOCUMENT = "some words of a passage " * 20
_ANSWER = "an answer of some length " * 10
_TIMED = 5  # turns of which the least processor time counts; one more counts bytecodes
_HEADERS = [(b"content-type", b"application/json"), (b"authorization", b"Bearer k")]

Body = dict[str, Any]
Turn = Callable[[int], tuple[str, Body]]  # path and body of the turn of a number


def documents_of(number: int) -> list[dict[str, Any]]:
    first = _NEW_PER_TURN * number
    numbers = [*range(first, first + _NEW_PER_TURN), max(0, first - 5)]
    return [{"id": f"d{n}", "text": f"Document {n}. {_DOCUMENT}"} for n in dict.fromkeys(numbers)]


class Chat:
    """The client side of a conversation that resends its history."""

    def __init__(self, way: str) -> None:
        self._way = way
        self._messages: list[Body] = []
        self._documents: dict[str, Body] = {}

    def turn(self, number: int) -> tuple[str, Body]:
        documents, text = documents_of(number), f"What is in {number}?"
        ours: Body = {"documents": documents}
        if self._way == "tags":
            blocks = "\n".join([f"<document>{d['text']}</document>" for d in documents])
            text = f"<documents>\n{blocks}\n</documents>\n{text}"
            ours = {}
        elif self._way == "resent":
            self._documents |= {d["id"]: d for d in documents}
            ours = {"documents": [*self._documents.values()]}
        else:
            ours["session_id"] = "conversation"
        self._messages.append({"role": "user", "content": text})
        body: Body = {"model": "m", "messages": [*self._messages]}
        self._messages.append({"role": "assistant", "content": f"{number} {_ANSWER}"})
        return _CHAT, {**body, **({"ragboost": ours} if ours else {})}


async def _post(app: Any, path: str, body: Body) -> bytes:
    raw = json.dumps(body).encode()
    received = [{"type": "http.request", "body": raw, "more_body": False}]
    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [*_HEADERS, (b"content-length", b"%d" % len(raw))],
    }
    answer, status = bytearray(), 0

    async def receive() -> Mapping[str, Any]:
        return received.pop() if received else await asyncio.Future()

    async def send(message: Mapping[str, Any]) -> None:
        nonlocal status
        status = message.get("status", status)
        answer.extend(message.get("body", b""))

    await app(scope, receive, send)
    assert status in (200, 201), f"status {status}: {bytes(answer[:300])!r}"
    return bytes(answer)


class Stopwatch:
    """Measure the turns of these numbers, and the few after each."""

    def __init__(self, way: str, turns: Sequence[int]) -> None:
        self.rows: list[dict[str, Any]] = []
        self.last = max(turns) + _TIMED
        self._way = way
        self._turns = sorted(turns)
        self._seconds: list[float] = []

    @contextmanager
    def turn(self, number: int, sizes: Sequence[int]) -> Iterator[None]:
        start = max((at for at in self._turns if at <= number), default=-_TIMED)
        offset, counter = number - start, PathCounter()
        if offset == _TIMED:
            sys.settrace(counter.trace)
        began = time.process_time()
        try:
            yield
        finally:
            sys.settrace(None)
        seconds = time.process_time() - began
        if offset < _TIMED:
            self._seconds = [*self._seconds, seconds] if offset else [seconds]
        elif offset == _TIMED and start > 0:
            self.rows.append(
                {
                    "way": self._way,
                    "turn": start,
                    "sent_kb": round(sizes[-1] / 1000, 1),
                    "bytecodes": counter.num_bytecodes,
                    "us": round(1e6 * min(self._seconds)),
                }
            )


async def measure(way: str, turns: Sequence[int]) -> list[dict[str, Any]]:
    """Hold a conversation, and return a row for each of these turns."""
    if way == "library":
        return _measure_library(turns)
    sizes: list[int] = []

    class Sized(Backend):
        def data_received(self, data: bytes) -> None:
            size = len(self._buffer) + len(data)
            super().data_received(data)
            if not self._buffer:
                sizes.append(size)

    server = await asyncio.get_running_loop().create_server(Sized, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    app = create_app(Settings(backend={"url": url}))  # type: ignore[arg-type]
    watch = Stopwatch(way, turns)
    async with app.router.lifespan_context(app):
        turn: Turn = Chat(way).turn
        if way == "sessions":
            session = json.loads(await _post(app, "/v1/sessions", {"model": "m"}))["id"]
            path = f"/v1/sessions/{session}/chat/completions"

            def turn(number: int) -> tuple[str, Body]:
                return path, {"query": f"What is in {number}?", "documents": documents_of(number)}

        for number in range(1, watch.last + 1):
            path_and_body = turn(number)
            with watch.turn(number, sizes):
                await _post(app, *path_and_body)
    server.close()
    return watch.rows


def _measure_library(turns: Sequence[int]) -> list[dict[str, Any]]:
    session, watch = Booster(Settings()).session("s"), Stopwatch("library", turns)
    sizes: list[int] = []
    for number in range(1, watch.last + 1):
        documents = documents_of(number)
        with watch.turn(number, sizes):
            sizes.append(len(session.boost(f"What is in {number}?", documents).render()))
    return watch.rows


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--turn", type=int, action="append", help="default: 10, 100, 200, 390")
    args = parser.parse_args()
    turns = args.turn or [10, 100, 200, 390]
    rows = [row for way in WAYS for row in asyncio.run(measure(way, turns))]
    report({"rows": rows}, args, lambda result: show_rows(result["rows"]))


if __name__ == "__main__":
    main()
