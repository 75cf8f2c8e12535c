"""Measure how much memory the proxy takes for conversations, by the way documents come.

    python -m benchmarks.proxy.memory --json
    python -m benchmarks.proxy.memory --requests 3000 --size 400000
    python -m benchmarks.proxy.memory --requests 3000 --size 4000000 --mix --kind all

Each kind has a `ragboost serve` of its own in front of a backend of negligible cost, and sends
first turns with documents of a shared pool, all of other conversations: documents in a `ragboost`
object with and without a session id, in tags, joined without a mark, and none; or `all` in turn.
`rss_mb` is the resident set after half and after all requests, less that after `WARM_UP` requests,
`peak_mb` all that the process ever had.
"""

import argparse
import contextlib
import http.client
import itertools
import json
import random
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import psutil

from benchmarks.command import make_parser, report, show_rows
from benchmarks.processes import listens, spawn, stop
from benchmarks.proxy.rounds import write_prompt
from benchmarks.proxy.targets import Kind
from scripts.ports import free_port
from scripts.processes import exit_on_sigterm

KINDS = ("named", "object", "tags", "joined", "none", "all")
WARM_UP = 50
_DOCUMENTS, _POOL = 10, 500


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--requests", type=int, default=2_000, help="of each kind")
    parser.add_argument("--size", type=int, default=45_000, help="bytes of a body, about")
    parser.add_argument("--mix", action="store_true", help="sizes from a hundredth of that on")
    parser.add_argument("--kind", action="append", choices=KINDS, help="kinds to send")
    parser.add_argument("--memory", type=int, help="proxy.memory_bytes")
    args = parser.parse_args()
    exit_on_sigterm()
    rows = [measure(kind, args) for kind in args.kind or KINDS]
    report(rows, args, show_rows)


def measure(kind: str, args: argparse.Namespace) -> dict[str, Any]:
    """Send requests of one kind to a new proxy; return its growth."""
    requests = args.requests
    with _proxy(args.memory) as (process, port):
        bodies = _bodies(kind, args.size, is_mix=args.mix)
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
        peak = _peak_bytes(process)
    growth = {"half_rss_mb": grown[0], "rss_mb": grown[-1]}
    return {"kind": kind, "requests": requests, **growth, "peak_mb": round(peak / 1e6, 1)}


def _peak_bytes(process: psutil.Process) -> int:
    status = Path(f"/proc/{process.pid}/status").read_text()
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])


def _bodies(kind: str, size: int, *, is_mix: bool) -> Iterator[bytes]:
    """Yield the first turns of ever new conversations."""
    rng = random.Random(0)
    sizes = [size * 100 ** (rng.random() - 1) if is_mix else size for _ in range(_POOL)]
    pool = [
        f"Document {number}. " + "some words " * int(length / _DOCUMENTS / 11)
        for number, length in enumerate(sizes)
    ]
    pool.sort(key=len)  # the documents of a request are about as long as each other
    for number in itertools.count(1):
        first = rng.randrange(0, _POOL, 50)
        documents = rng.sample(pool[first : first + 50] if is_mix else pool, _DOCUMENTS)
        name = KINDS[number % (len(KINDS) - 1)] if kind == "all" else kind
        written = "object" if name == "named" else name
        body = write_prompt(documents, f"Question {number}?", kind=cast(Kind, written))
        if name == "named":
            body["ragboost"]["session_id"] = f"s{number}"
        yield json.dumps({"model": "m", **body}).encode()


@contextlib.contextmanager
def _proxy(memory_bytes: int | None) -> Iterator[tuple[psutil.Process, int]]:
    with contextlib.ExitStack() as stack:
        log = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "log"
        port, backend_port = free_port(), free_port()
        backend = spawn(
            [sys.executable, "-m", "benchmarks.proxy.mock_backend", str(backend_port)], log=log
        )
        stack.callback(stop, backend)
        url = f"http://127.0.0.1:{backend_port}"
        serve = ["-m", "ragboost", "serve", "--backend", url, "--port", str(port)]
        env = {} if memory_bytes is None else {"RAGBOOST_PROXY__MEMORY_BYTES": str(memory_bytes)}
        proxy = spawn([sys.executable, *serve], log=log, env=env)
        stack.callback(stop, proxy)
        if not listens(backend, backend_port) or not listens(proxy, port):
            raise SystemExit(f"the proxy did not start:\n{log.read_text()}")
        yield psutil.Process(proxy.pid), port


if __name__ == "__main__":
    main()
