"""`ragboost` in this process, with a port that tells where its memory is.

    python -m benchmarks.proxy.soak.watched PORT serve --backend http://127.0.0.1:8000

Started by `benchmarks.proxy.soak`. A connection to PORT on loopback that sends `memory` gets one
JSON object: malloc's bytes in use, those that are free but kept, which no object owns, and the rest
of the process's own memory: Python's small objects and stacks. Knows glibc and Linux; elsewhere the
object is empty. For `containers` it gets the entries of all that RAGBoost's objects keep. Bounds
that are no settings are a fiftieth of what they are in the product, so that they are reached.
"""

import ctypes
import gc
import importlib
import json
import os
import re
import socket
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from ragboost.booster import tenants
from ragboost.cli import main
from ragboost.proxy.hosted.conversations import LastPrompts
from ragboost.proxy.observability.recent_requests import RecentRequests
from ragboost.requests.formats.documents import DocumentPool
from ragboost.util.bounded_map import BoundedMap

_MB = 1e6
_PART = 50
_LOWERED = (
    "cache_sync.follower._MAX_REQUESTS",
    "cache_sync.follower._MAX_PREFIXES",
    "cache_sync.in_flight._MAX_REQUESTS",
    "index.directory._MAX_RECENT",
    "proxy.observability.metrics._MAX_MODELS",
    "proxy.routes.dashboard.figures._MAX_SAMPLES",
    "booster.tokens.counter._MAX_WANTED",
)
_LOWERED_DEFAULTS: tuple[tuple[Any, str], ...] = (
    (DocumentPool, "max_bytes"),
    (RecentRequests, "max_labels"),
    (LastPrompts, "max_prompts"),
)
_MODELS = 4  # whose documents are counted apart
_POOLS = ("asyncio_", "uvloop_")
_ANONYMOUS = re.compile(r"^RssAnon:\s+(\d+) kB", re.MULTILINE)


class _MallInfo(ctypes.Structure):
    """`struct mallinfo2` of <malloc.h>."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


def memory_stages() -> dict[str, float]:
    """Return this process's memory by owner; empty without glibc 2.33 or Linux."""
    mallinfo2 = getattr(ctypes.CDLL(None), "mallinfo2", None)
    status = Path("/proc/self/status")
    if mallinfo2 is None or not status.exists():
        return {}
    mallinfo2.restype = _MallInfo
    info = mallinfo2()
    found = _ANONYMOUS.search(status.read_text())
    anonymous = int(found[1]) * 1024 if found else 0
    return {
        "malloc in use, MB": (info.uordblks + info.hblkhd) / _MB,
        "malloc free, MB": info.fordblks / _MB,
        "Python objects, MB": (anonymous - info.arena - info.hblkhd) / _MB,
        "Python blocks, thousands": sys.getallocatedblocks() / 1e3,
        "threads of the pool": float(_num_pool_threads()),
    }


def containers() -> dict[str, list[int]]:
    """Return by class and attribute how many entries the containers of RAGBoost's objects have in
    sum, and how many they may have; 0: their bound is not their own."""
    found: dict[str, list[int]] = {}
    for owner in _reachable():
        kind = type(owner)
        if not kind.__module__.startswith("ragboost."):
            continue
        for name, value in _attributes(owner):
            if isinstance(value, BoundedMap | deque | dict | list | set):
                bound = getattr(value, "max_entries", getattr(value, "maxlen", 0))
                row = found.setdefault(f"{kind.__name__}.{name}", [0, 0])
                row[0], row[1] = row[0] + len(value), row[1] + (bound or 0)
    found["threads of the pool"] = [_num_pool_threads(), min(32, (os.cpu_count() or 1) + 4)]
    return found


def _num_pool_threads() -> int:
    """Count the threads of the event loop's pool, which starts one when more work meets than ever
    before, up to its bound."""
    return sum(thread.name.startswith(_POOLS) for thread in threading.enumerate())


def _reachable() -> list[Any]:
    """Return what the other threads refer to; a frozen heap is not among `gc.get_objects()`."""
    modules = list(sys.modules.values())
    seen: dict[int, Any] = {id(vars(each)): each for each in modules if hasattr(each, "__dict__")}
    frontier: list[Any] = []
    for ident, top in sys._current_frames().items():
        frame = top if ident != threading.get_ident() else None
        while frame is not None:
            frontier.extend(frame.f_locals.values())  # a running frame has no referents
            frame = frame.f_back
    while frontier:
        referents, frontier = gc.get_referents(*frontier), []
        for value in referents:
            if id(value) not in seen and not isinstance(value, type | ModuleType | str | bytes):
                seen[id(value)] = value
                frontier.append(value)
    return list(seen.values())


def _attributes(owner: Any) -> Iterator[tuple[str, Any]]:
    yield from list(getattr(owner, "__dict__", {}).items())
    for kind in type(owner).__mro__:
        slots = vars(kind).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if hasattr(owner, name):
                yield name, getattr(owner, name)


def _lower_bounds() -> None:
    for path in _LOWERED:
        module, _, name = path.rpartition(".")
        room = importlib.import_module(f"ragboost.{module}")
        setattr(room, name, getattr(room, name) // _PART)
    for kind, name in _LOWERED_DEFAULTS:
        kind.__init__.__kwdefaults__[name] //= _PART
    tenants._MAX_MODELS = _MODELS


_ANSWERS: dict[str, Callable[[], dict[str, Any]]] = {
    "memory": memory_stages,
    "containers": containers,
}


def _tell(listener: socket.socket) -> None:
    while True:
        connection, _ = listener.accept()
        with connection:
            answer = _ANSWERS[connection.recv(64).decode()]
            connection.sendall(json.dumps(answer()).encode())


def read_stages(port: int, what: str = "memory") -> dict[str, Any]:
    """Ask a process started by this module; empty where it cannot tell.

    Raises:
        OSError: it does not listen.
    """
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(what.encode())
        stages: dict[str, Any] = json.loads(connection.makefile("rb").read())
    return stages


if __name__ == "__main__":
    _lower_bounds()
    asked = socket.create_server(("127.0.0.1", int(sys.argv.pop(1))))
    threading.Thread(target=_tell, args=(asked,), name="memory", daemon=True).start()
    main()
