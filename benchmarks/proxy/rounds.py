"""Requests of the benchmark of proxies, and a client of negligible cost that times them."""

import asyncio
import json
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.processes import KEY
from benchmarks.proxy.targets import Kind, Target

NUM_DOCUMENTS = 15
# Equal texts of a list in a text are two documents, in a `ragboost` object one.
_FOUND = {"tags": NUM_DOCUMENTS, "object": NUM_DOCUMENTS - 1}
BODIES = {"1k": 1_000, "45k": 45_000, "400k": 400_000, "45k-stream": 45_000}


@dataclass
class Round:
    """Figures of one target under one load."""

    cpu_us: float
    p50_us: float
    p99_us: float
    first_byte_us: float
    rps: float


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
            **write_prompt(documents, f"What about {i} of {seed}?", kind=target.kind),
        }
        data = json.dumps(fields).encode()
        head = (
            "POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\n"
            "content-type: application/json\r\n"
            f"authorization: Bearer {KEY}\r\ncontent-length: {len(data)}\r\n\r\n"
        )
        requests.append(head.encode() + data)
    return requests


def write_prompt(documents: Sequence[str], question: str, *, kind: Kind) -> dict[str, Any]:
    """Return the messages of a chat completion, and the `ragboost` object of the kind `object`."""
    asked = {"role": "user", "content": question}
    if kind == "object":
        return {"messages": [asked], "ragboost": {"documents": documents}}
    if kind == "none":
        return {"messages": [{**asked, "content": f"{' '.join(documents)} {question}"}]}
    text = "\n\n".join(documents)
    if kind == "tags":
        blocks = "\n".join(f"<document>{text}</document>" for text in documents)
        text = f"<documents>\n{blocks}\n</documents>"
    system = {"role": "system", "content": f"Answer from these documents.\n{text}"}
    return {"messages": [system, asked]}


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
    found = _FOUND.get(target.kind) if target.name.startswith("ragboost") else None
    if found and b"x-ragboost-documents: %d\r" % found not in head:
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
