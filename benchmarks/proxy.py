"""What a request costs on its way: processor time, latency and throughput, beside a direct
connection to the same mock backend.

All targets are processes; rounds are interleaved and medians taken, so that ratios can be trusted
where microseconds cannot. Runs `python -m benchmarks.proxy --json`.
"""

import argparse
import asyncio
import contextlib
import json
import random
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psutil
import uvloop
from rich.console import Console
from rich.table import Table

NUM_DOCUMENTS = 15
CLIENTS = (1, 64)
BODIES = {"1k": 1_000, "45k": 45_000, "400k": 400_000, "45k-stream": 45_000}


@dataclass(frozen=True)
class Target:
    """A server to measure: its process and its port."""

    name: str
    process: subprocess.Popen[bytes]
    port: int


@dataclass
class Round:
    """One target under one load."""

    cpu_us: float
    p50_us: float
    p99_us: float
    first_byte_us: float
    rps: float


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=300, help="requests per round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    with _targets() as targets:
        result = {"targets": _measure(targets, args.requests, args.rounds)}
    if args.json:
        print(json.dumps(result))
    else:
        _print_table(result["targets"])


@contextlib.contextmanager
def _targets() -> Iterator[list[Target]]:
    """Start the backend and what stands in front of it."""
    with contextlib.ExitStack() as stack:
        backend_port, our_port = _free_port(), _free_port()
        backend = _start(stack, "benchmarks.mock_backend", str(backend_port), port=backend_port)
        url = f"http://127.0.0.1:{backend_port}"
        serve = ("ragboost", "serve", "--backend", url, "--port", str(our_port))
        ours = _start(stack, *serve, port=our_port)
        yield [Target("direct", backend, backend_port), Target("ragboost", ours, our_port)]


def _start(
    stack: contextlib.ExitStack, module: str, *arguments: str, port: int
) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments], stderr=subprocess.DEVNULL
    )
    stack.callback(process.wait)
    stack.callback(process.terminate)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return process
        time.sleep(0.05)
    raise SystemExit(f"{module} does not listen on port {port}")


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _measure(targets: list[Target], num_requests: int, num_rounds: int) -> dict[str, Any]:
    result: dict[str, Any] = {target.name: {} for target in targets}
    for body in BODIES:
        for clients in CLIENTS:
            rounds: dict[str, list[Round]] = {target.name: [] for target in targets}
            for number in range(num_rounds):
                requests = _requests(body, num_requests, seed=number)
                for target in targets:
                    rounds[target.name].append(uvloop.run(_run(target, requests, clients)))
            for name, measured in rounds.items():
                per_client = result[name].setdefault(body, {})
                per_client[str(clients)] = {
                    field: round(statistics.median(getattr(r, field) for r in measured), 1)
                    for field in Round.__dataclass_fields__
                }
    return result


def _requests(body: str, num_requests: int, *, seed: int) -> list[bytes]:
    """Requests with documents of a shared pool, in random order, as a retriever would send them."""
    rng = random.Random(seed)
    size = BODIES[body] // NUM_DOCUMENTS
    pool = [{"id": i, "text": f"Document {i}. " + "some words " * (size // 11)} for i in range(60)]
    requests = []
    for i in range(num_requests):
        fields: dict[str, Any] = {
            "model": "m",
            "stream": "stream" in body,
            "messages": [{"role": "user", "content": f"What about {i}?"}],
            "ragboost": {"documents": rng.sample(pool, NUM_DOCUMENTS)},
        }
        data = json.dumps(fields).encode()
        head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n"
        requests.append(head % len(data) + data)
    return requests


async def _run(target: Target, requests: list[bytes], clients: int) -> Round:
    process = psutil.Process(target.process.pid)
    queue = list(reversed(requests))
    totals: list[float] = []
    first_bytes: list[float] = []
    before, started = process.cpu_times(), time.perf_counter()
    await asyncio.gather(
        *(_client(target.port, queue, totals, first_bytes) for _ in range(clients))
    )
    wall, after = time.perf_counter() - started, process.cpu_times()
    cpu = after.user + after.system - before.user - before.system
    totals.sort()
    return Round(
        cpu_us=cpu / len(requests) * 1e6,
        p50_us=totals[len(totals) // 2] * 1e6,
        p99_us=totals[int(len(totals) * 0.99)] * 1e6,
        first_byte_us=statistics.median(first_bytes) * 1e6,
        rps=len(requests) / wall,
    )


async def _client(
    port: int, queue: list[bytes], totals: list[float], first_bytes: list[float]
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while queue:
        request = queue.pop()
        started = time.perf_counter()
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            raise SystemExit(f"port {port} answered {head[:60]!r}")
        first_bytes.append(await _read_body(reader, head.lower()) - started)
        totals.append(time.perf_counter() - started)
    writer.close()
    await writer.wait_closed()


async def _read_body(reader: asyncio.StreamReader, head: bytes) -> float:
    """Read an answer's body; the time of its first byte."""
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
    table = Table("target", "body", "clients", "CPU us", "p50 us", "p99 us", "first byte us", "rps")
    for name, bodies in targets.items():
        for body, loads in bodies.items():
            for clients, row in loads.items():
                table.add_row(name, body, clients, *(f"{value:,.0f}" for value in row.values()))
    Console().print(table)


if __name__ == "__main__":
    main()
