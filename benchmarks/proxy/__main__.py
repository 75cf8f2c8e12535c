"""Measure the proxy's processor time, latency and throughput, next to other proxies.

    python -m benchmarks.proxy --json
    python -m benchmarks.proxy --only ragboost --only nginx --body 45k
    python -m benchmarks.proxy --only ragboost --workers 2 --body 45k

All targets are processes in front of the same mock backend and receive the same bytes; `direct` is
the backend itself. Rounds are interleaved and medians reported, so ratios between targets are more
reliable than absolute microseconds. `ragboost-object` is the same RAGBoost process with documents
in a `ragboost` object. With `--workers N` a second RAGBoost has N workers on N CPUs, the last of
which is that of backend and clients if there are no more: `rps` then needs N + 1 CPUs to mean
anything, and `cpu_us` says what the workers add to the cost of a request. Times are microseconds
per request. Targets that are not installed are listed in `left_out`; `scripts/peers/setup.sh`
installs the peers.
"""

import argparse
import asyncio
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import uvloop
from rich.console import Console
from rich.table import Table

from benchmarks.command import make_parser
from benchmarks.proxy.targets import KEY, Target, known_peers, last_cpu, running
from scripts.processes import exit_on_sigterm

NUM_DOCUMENTS = 15
CLIENTS = (1, 64)
BODIES = {"1k": 1_000, "45k": 45_000, "400k": 400_000, "45k-stream": 45_000}
_MIN_REQUESTS = 24
_WARM_UP = 12


@dataclass
class Round:
    """Figures of one target under one load."""

    cpu_us: float
    p50_us: float
    p99_us: float
    first_byte_us: float
    rps: float


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--requests", type=int, default=300, help="maximum requests per round")
    parser.add_argument("--seconds", type=float, default=3.0, help="approximate length of a round")
    parser.add_argument("--rounds", type=int, default=3, help="rounds per target")
    parser.add_argument(
        "--only", action="append", choices=tuple(known_peers()), help="targets to run"
    )
    parser.add_argument("--body", action="append", choices=tuple(BODIES), help="bodies to send")
    parser.add_argument("--workers", type=int, default=0, help="also with so many workers")
    args = parser.parse_args()
    exit_on_sigterm()
    names = args.only or list(known_peers())
    if args.workers:
        names.append(f"ragboost-{args.workers}-workers")
    with running(names, log=_log, workers=args.workers) as targets:
        os.sched_setaffinity(0, {last_cpu()})
        measured = _measure(targets, args)
    result = {"targets": measured, "left_out": [name for name in names if name not in measured]}
    if args.json:
        print(json.dumps(result))
    else:
        _print_table(measured)


def _log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _measure(targets: Sequence[Target], args: argparse.Namespace) -> dict[str, Any]:
    result: dict[str, Any] = {target.name: {} for target in targets}
    for body in args.body or BODIES:
        for clients in CLIENTS:
            _log(f"{body}, {clients} clients")
            rounds: dict[str, list[Round]] = {target.name: [] for target in targets}
            sizes = {t.name: _num_requests(t, body, clients, args) for t in targets}
            for number in range(args.rounds):
                for target in targets:
                    requests = requests_for(target, body, sizes[target.name], seed=number)
                    rounds[target.name].append(uvloop.run(run_round(target, requests, clients)))
            for name, measured in rounds.items():
                per_client = result[name].setdefault(body, {})
                per_client[str(clients)] = {
                    field: round(statistics.median(getattr(r, field) for r in measured), 1)
                    for field in Round.__dataclass_fields__
                }
    return result


def _num_requests(target: Target, body: str, clients: int, args: argparse.Namespace) -> int:
    """Estimate how many requests fit into a round, with a few that also warm up the target."""
    requests = requests_for(target, body, _WARM_UP, seed=-1)
    uvloop.run(run_round(target, requests, clients=1))
    warm = uvloop.run(run_round(target, requests, clients=min(clients, _WARM_UP)))
    return max(_MIN_REQUESTS, 2 * clients, min(args.requests, round(args.seconds * warm.rps)))


def requests_for(target: Target, body: str, num_requests: int, *, seed: int) -> list[bytes]:
    """Return requests with documents from a shared pool, in random order and one of them twice."""
    rng = random.Random(seed)
    size = BODIES[body] // NUM_DOCUMENTS
    pool = [f"Document {i}. " + "some words " * (size // 11) for i in range(60)]
    requests = []
    for i in range(num_requests):
        documents = rng.sample(pool, NUM_DOCUMENTS - 1)
        documents.append(rng.choice(documents))
        fields: dict[str, Any] = {
            "model": "m",
            "stream": "stream" in body,
            **_prompt(documents, f"What about {i} of {seed}?", in_object=target.in_object),
        }
        data = json.dumps(fields).encode()
        head = (
            "POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\n"
            "content-type: application/json\r\n"
            f"authorization: Bearer {KEY}\r\ncontent-length: {len(data)}\r\n\r\n"
        )
        requests.append(head.encode() + data)
    return requests


def _prompt(documents: Sequence[str], question: str, *, in_object: bool) -> dict[str, Any]:
    asked = {"role": "user", "content": question}
    if in_object:
        return {"messages": [asked], "ragboost": {"documents": documents}}
    blocks = "\n".join(f"<document>{text}</document>" for text in documents)
    text = f"Answer from these documents.\n<documents>\n{blocks}\n</documents>"
    return {"messages": [{"role": "system", "content": text}, asked]}


async def run_round(target: Target, requests: list[bytes], clients: int) -> Round:
    """Send requests over `clients` connections, after one uncounted request on each."""
    queue = list(reversed(requests))
    totals: list[float] = []
    first_bytes: list[float] = []
    address = "127.0.0.1", target.port
    connections = [await asyncio.open_connection(*address) for _ in range(clients)]
    # The first requests make the target connect to the backend: they do not count.
    first = zip(connections, requests, strict=False)
    await asyncio.gather(*(_client(target, c, [request], ([], [])) for c, request in first))
    before, started = target.cpu_ns(), time.perf_counter()
    await asyncio.gather(*(_client(target, c, queue, (totals, first_bytes)) for c in connections))
    wall, after = time.perf_counter() - started, target.cpu_ns()
    for _, writer in connections:
        writer.close()
        await writer.wait_closed()
    totals.sort()
    return Round(
        cpu_us=(after - before) / len(requests) / 1e3,
        p50_us=totals[len(totals) // 2] * 1e6,
        p99_us=totals[int(len(totals) * 0.99)] * 1e6,
        first_byte_us=statistics.median(first_bytes) * 1e6,
        rps=len(requests) / wall,
    )


async def _client(
    target: Target,
    connection: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    queue: list[bytes],
    times: tuple[list[float], list[float]],
) -> None:
    """Send requests from the queue; append the seconds to the response's end and first byte."""
    reader, writer = connection
    while queue:
        request = queue.pop()
        started = time.perf_counter()
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        _check(target, head)
        times[1].append(await _read_body(reader, head.lower()) - started)
        times[0].append(time.perf_counter() - started)


def _check(target: Target, head: bytes) -> None:
    if not head.startswith(b"HTTP/1.1 200"):
        raise SystemExit(f"{target.name} returned {head[:60]!r}")
    if target.name.startswith("ragboost") and b"x-ragboost-documents: 14" not in head:
        raise SystemExit(f"{target.name} did not boost: {head!r}")


async def _read_body(reader: asyncio.StreamReader, head: bytes) -> float:
    """Read a response body and return the time of its first byte."""
    at = head.find(b"content-length:")
    if at >= 0:
        await reader.readexactly(int(head[at + 15 :].split(b"\r\n", 1)[0]))
        return time.perf_counter()
    first = 0.0
    while True:
        size = int(await reader.readuntil(b"\r\n"), 16)
        await reader.readexactly(size + 2)
        first = first or time.perf_counter()
        if size == 0:
            return first


def _print_table(targets: dict[str, Any]) -> None:
    columns = ("target", "body", "clients", "CPU us", "÷ nginx", "p50 us", "p99 us")
    table = Table(*columns, "first byte us", "rps")
    for name, bodies in targets.items():
        for body, loads in bodies.items():
            for clients, row in loads.items():
                nginx = targets.get("nginx", {}).get(body, {}).get(clients)
                ratio = f"{row['cpu_us'] / nginx['cpu_us']:.1f}" if nginx else ""
                cells = [f"{value:,.0f}" for value in row.values()]
                table.add_row(name, body, clients, cells[0], ratio, *cells[1:])
    Console().print(table)


if __name__ == "__main__":
    main()
