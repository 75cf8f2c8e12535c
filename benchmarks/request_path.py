"""Count what one request touches in the proxy: files, rooms, classes, carriers, calls.

    python -m benchmarks.request_path --json

One chat completion with eight documents in a `ragboost` object goes through the real app to a
backend on loopback. Another request with half of these documents has warmed the app before.
"""

import argparse
import asyncio
import dataclasses
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from benchmarks.mock_backend import Backend
from ragboost.config import Settings
from ragboost.proxy.app import create_app

_PACKAGE = str(Path(sys.modules["ragboost"].__path__[0]))
_NUM_DOCUMENTS = 8
_PATH = "/v1/chat/completions"


class PathCounter:
    """A profiler that notes every call of our code; classes count when an object is created.

    Attributes:
        files: of the package, in which a function was called.
        classes: of which an object was created or a method called.
        num_calls: of our functions.
        num_switches: calls from one file of the package into another.
    """

    def __init__(self) -> None:
        self.files: set[str] = set()
        self.classes: dict[str, type] = {}
        self.num_calls = self.num_switches = 0
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
            "switches": self.num_switches,
            "names": {
                "files": sorted(self.files),
                "classes": sorted(self.classes),
                "carriers": sorted(carriers),
            },
        }


def _is_carrier(kind: type) -> bool:
    return issubclass(kind, tuple) or dataclasses.is_dataclass(kind)


def request_body(first: int) -> bytes:
    """Return a chat completion with eight documents, of which other requests have some."""
    numbers = range(first, first + _NUM_DOCUMENTS)
    documents = [f"Document {number}. {'some words ' * 80}" for number in numbers]
    messages = [{"role": "user", "content": f"What is in {first}?"}]
    body = {"model": "m", "messages": messages, "ragboost": {"documents": documents}}
    return json.dumps(body).encode()


async def count_request(settings: Mapping[str, Any] | None = None) -> PathCounter:
    """Serve two requests, and count what the second one calls."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Backend, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    app = create_app(Settings(backend={"url": f"http://127.0.0.1:{port}"}, **(settings or {})))
    counter = PathCounter()
    async with app.router.lifespan_context(app):
        await _ask(app, request_body(0))
        sys.setprofile(counter)
        try:
            await _ask(app, request_body(4))
        finally:
            sys.setprofile(None)
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
    """Count and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object, with names")
    args = parser.parse_args()
    figures = asyncio.run(count_request()).figures()
    if args.json:
        print(json.dumps(figures, indent=1))
        return
    for name, count in figures.items():
        if isinstance(count, int):
            print(f"{name:10} {count}")


if __name__ == "__main__":
    main()
