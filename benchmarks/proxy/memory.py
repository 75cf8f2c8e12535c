"""Measure how much memory the proxy takes for conversations, by the way documents come.

    python -m benchmarks.proxy.memory --json
    python -m benchmarks.proxy.memory --requests 3000 --size 400000

Each kind has a `ragboost serve` of its own in front of a backend of negligible cost, and sends
first turns with documents of a shared pool, all of other conversations: documents in a `ragboost`
object with and without a session id, in tags, joined without a mark, and none. `rss_mb` is the
resident set after half and after all requests, less that after `WARM_UP` requests.
"""

import contextlib
import http.client
import json
import random
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from benchmarks.command import make_parser, report, show_rows
from benchmarks.processes import listens, spawn, stop
from benchmarks.proxy.rounds import write_prompt
from scripts.ports import free_port
from scripts.processes import exit_on_sigterm

KINDS = ("named", "object", "tags", "joined", "none")
WARM_UP = 50
_DOCUMENTS, _POOL = 10, 500


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--requests", type=int, default=2_000, help="of each kind")
    parser.add_argument("--size", type=int, default=45_000, help="bytes of a body, about")
    args = parser.parse_args()
    exit_on_sigterm()
    rows = [measure(kind, requests=args.requests, size=args.size) for kind in KINDS]
    report(rows, args, show_rows)


def measure(kind: str, *, requests: int, size: int) -> dict[str, Any]:
    """Send requests of one kind to a new proxy; return its growth."""
    with _proxy() as (process, port):
        bodies = _bodies(kind, size)
        grown, before = [], 0
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        for number in range(WARM_UP + requests):
            connection.request("POST", "/v1/chat/completions", next(bodies))
            response = connection.getresponse()
            if response.status != 200:
                raise SystemExit(f"status {response.status}: {response.read()[:200]!r}")
            response.read()
            if number + 1 == WARM_UP:
                before = process.memory_info().rss
            elif number + 1 - WARM_UP in (requests // 2, requests):
                grown.append(round((process.memory_info().rss - before) / 1e6, 1))
    return {"kind": kind, "requests": requests, "half_rss_mb": grown[0], "rss_mb": grown[-1]}


def _bodies(kind: str, size: int) -> Iterator[bytes]:
    """Yield the first turns of ever new conversations."""
    rng, words = random.Random(0), "some words " * (size // _DOCUMENTS // 11)
    pool = [f"Document {number}. {words}" for number in range(_POOL)]
    number = 0
    while True:
        number += 1
        documents = rng.sample(pool, _DOCUMENTS)
        written = "object" if kind == "named" else kind
        body = write_prompt(documents, f"Question {number}?", kind=written)
        if kind == "named":
            body["ragboost"]["session_id"] = f"s{number}"
        yield json.dumps({"model": "m", **body}).encode()


@contextlib.contextmanager
def _proxy() -> Iterator[tuple[psutil.Process, int]]:
    with contextlib.ExitStack() as stack:
        log = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "log"
        port, backend_port = free_port(), free_port()
        backend = spawn(
            [sys.executable, "-m", "benchmarks.proxy.mock_backend", str(backend_port)], log=log
        )
        stack.callback(stop, backend)
        url = f"http://127.0.0.1:{backend_port}"
        serve = ["-m", "ragboost", "serve", "--backend", url, "--port", str(port)]
        proxy = spawn([sys.executable, *serve], log=log)
        stack.callback(stop, proxy)
        if not listens(backend, backend_port) or not listens(proxy, port):
            raise SystemExit(f"the proxy did not start:\n{log.read_text()}")
        yield psutil.Process(proxy.pid), port


if __name__ == "__main__":
    main()
