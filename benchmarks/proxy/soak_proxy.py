"""`ragboost` in this process, with a port that tells where its memory is.

    python -m benchmarks.proxy.soak_proxy PORT serve --backend http://127.0.0.1:8000

Started by `benchmarks.proxy.soak`. A connection to PORT on loopback gets one JSON object: malloc's
bytes in use, those that are free but kept, which no object owns, and the rest of the process's own
memory: Python's small objects and stacks. Knows glibc and Linux; elsewhere the object is empty.
"""

import ctypes
import json
import re
import socket
import sys
import threading
from pathlib import Path

from ragboost.cli import main

_MB = 1e6
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
    }


def _tell(listener: socket.socket) -> None:
    while True:
        connection, _ = listener.accept()
        with connection:
            connection.sendall(json.dumps(memory_stages()).encode())


def read_stages(port: int) -> dict[str, float]:
    """Ask a process started by this module; empty where it cannot tell.

    Raises:
        OSError: it does not listen.
    """
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        stages: dict[str, float] = json.loads(connection.makefile("rb").read())
    return stages


if __name__ == "__main__":
    asked = socket.create_server(("127.0.0.1", int(sys.argv.pop(1))))
    threading.Thread(target=_tell, args=(asked,), name="memory", daemon=True).start()
    main()
