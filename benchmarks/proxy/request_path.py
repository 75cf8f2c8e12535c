"""Count what one request touches in the proxy: files, rooms, classes, carriers, calls, bytecodes.

    python -m benchmarks.proxy.request_path --json
    python -m benchmarks.proxy.request_path --body tags

One chat completion with eight documents, in a `ragboost` object or in tags, or with none, goes
through the real app to a backend on loopback. Others, which share some of these documents, have
warmed the app before. The counts do not depend on the machine or its load.
"""

import asyncio
import dataclasses
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Literal, get_args

from benchmarks.command import make_parser, report
from benchmarks.proxy.mock_backend import Backend
from ragboost.config import Settings
from ragboost.proxy.app import create_app

_PACKAGE = str(Path(sys.modules["ragboost"].__path__[0]))
_NUM_DOCUMENTS = 8
_NUM_POOLED = 60  # documents that requests have in common
_PATH = "/v1/chat/completions"
_WARM_UP = 300  # of the first requests, both orders are compared
Body = Literal["object", "tags", "none"]


class PathCounter:
    """A profiler that notes every call of our code; a class counts once a method is called."""

    def __init__(self) -> None:
        self.files: set[str] = set()
        self.classes: dict[str, type] = {}
        self.num_calls = self.num_switches = 0  # the latter from one file into another
        self.num_bytecodes = 0
        self._last = ""
        self._task = asyncio.current_task()

    def __call__(self, frame: FrameType, event: str, _argument: object) -> None:
        """Note one event of `sys.setprofile`."""
        if event != "call" or asyncio.current_task() not in (self._task, None):
            return  # another task: the proxy follows caches and asks backends meanwhile
        code = frame.f_code
        self._note_class(frame, code)
        file = code.co_filename
        if not file.startswith(_PACKAGE):
            return
        self.num_calls += 1
        self.files.add(file.removeprefix(_PACKAGE + "/"))
        self.num_switches += bool(self._last) and self._last != file
        self._last = file

    def _note_class(self, frame: FrameType, code: CodeType) -> None:
        if not code.co_argcount:
            return
        owner = frame.f_locals.get(code.co_varnames[0])
        kind = owner if isinstance(owner, type) else type(owner)
        if kind.__module__.startswith("ragboost."):
            self.classes[f"{kind.__module__}.{kind.__qualname__}"] = kind

    def trace(self, frame: FrameType, event: str, _argument: object) -> Any:
        """Count the bytecodes of our code: a function of `sys.settrace`."""
        if asyncio.current_task() not in (self._task, None):
            return None
        if event == "call":
            if not frame.f_code.co_filename.startswith(_PACKAGE):
                return None
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
        self.num_bytecodes += event == "opcode"
        return self.trace

    def figures(self) -> dict[str, Any]:
        """Return the counts, and the names behind them."""
        carriers = [name for name, kind in self.classes.items() if _is_carrier(kind)]
        rooms = {file.partition("/")[0].removesuffix(".py") for file in self.files}
        return {
            "files": len(self.files),
            "rooms": len(rooms),
            "classes": len(self.classes),
            "carriers": len(carriers),
            "calls": self.num_calls,
            "bytecodes": self.num_bytecodes,
            "switches": self.num_switches,
            "names": {
                "files": sorted(self.files),
                "classes": sorted(self.classes),
                "carriers": sorted(carriers),
            },
        }


def _is_carrier(kind: type) -> bool:
    return issubclass(kind, tuple) or dataclasses.is_dataclass(kind)


def request_body(number: int, kind: Body = "object") -> bytes:
    """Return a chat completion with eight documents, of which other requests have some."""
    first = 4 * number % _NUM_POOLED
    numbers = range(first, first + _NUM_DOCUMENTS)
    documents = [f"Document {at}. {'some words ' * 80}" for at in numbers]
    messages = [{"role": "user", "content": f"What is in {number}?"}]
    body: dict[str, Any] = {"model": "m", "messages": messages}
    if kind == "object":
        body["ragboost"] = {"documents": documents}
    elif kind == "tags":
        blocks = "\n".join([f"<document>{text}</document>" for text in documents])
        messages.insert(0, {"role": "system", "content": f"<documents>\n{blocks}\n</documents>"})
    return json.dumps(body).encode()


async def count_request(
    settings: Mapping[str, Any] | None = None, *, kind: Body = "object"
) -> PathCounter:
    """Serve some requests, and count what one calls, and the bytecodes of the next one."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Backend, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    app = create_app(Settings(backend={"url": f"http://127.0.0.1:{port}"}, **(settings or {})))
    counter = PathCounter()
    async with app.router.lifespan_context(app):
        for number in range(_WARM_UP):
            await _ask(app, request_body(number, kind))
        sys.setprofile(counter)
        try:
            await _ask(app, request_body(_WARM_UP, kind))
        finally:
            sys.setprofile(None)
        sys.settrace(counter.trace)
        try:
            await _ask(app, request_body(_WARM_UP + 1, kind))
        finally:
            sys.settrace(None)
    server.close()
    return counter


async def _ask(app: Any, body: bytes) -> None:
    status = 0
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    scope = {
        "type": "http",
        "method": "POST",
        "path": _PATH,
        "raw_path": _PATH.encode(),
        "query_string": b"",
        "headers": headers,
    }
    received = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> dict[str, Any]:
        if received:
            return received.pop()
        return await asyncio.Future()

    async def send(message: Mapping[str, Any]) -> None:
        nonlocal status
        status = message.get("status", status)

    await app(scope, receive, send)
    assert status == 200, f"the request failed with status {status}"


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--body", choices=get_args(Body), default="object", help="kind of request")
    args = parser.parse_args()
    figures = asyncio.run(count_request(kind=args.body)).figures()
    report(figures, args, show)


def show(figures: dict[str, Any]) -> None:
    for name, count in figures.items():
        if isinstance(count, int):
            print(f"{name:10} {count}")


if __name__ == "__main__":
    main()
