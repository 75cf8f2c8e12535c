"""What following an engine's cache costs: events per second and core, look-ups, and the hook.

usage: python -m benchmarks.kv_events [--blocks 200000] [--block-size 16] [--json]

Times are process time of one thread, except the hook's: these are what the engine's step would
notice, against a proxy that takes the connection and never answers.
"""

import argparse
import itertools
import json
import random
import socket
import time
from collections import deque

from ragboost.cache_sync.documents import DocumentTracker, document_ends
from ragboost.cache_sync.in_flight import InFlight
from ragboost.cache_sync.stream import EventStream
from ragboost.engine_hooks.events import (
    BlockRemoved,
    BlockStored,
    Event,
    EventBatch,
    decode_batch,
    encode_batch,
)
from ragboost.engine_hooks.reporter import Reporter
from ragboost.index import ContextIndex, EvictionForecast

BLOCKS_PER_PROMPT = 250
PROMPTS_HELD = 400


def make_payloads(num_blocks: int, block_size: int) -> tuple[list[bytes], list[int]]:
    """Steps of one prompt each, half of it shared with an earlier one; old ones are evicted."""
    dice, numbers = random.Random(0), itertools.count(1)
    held: deque[list[int]] = deque()
    payloads: list[bytes] = []
    made, last = 0, [0]
    while made < num_blocks:
        events: list[Event] = []
        if len(held) > PROMPTS_HELD:
            gone = reversed(held.popleft())
            events = [BlockRemoved(block_hashes=[h], medium="GPU", group_idx=0) for h in gone]
            made += len(events)
        hashes = [next(numbers) * 0x9E3779B97F4A7C15 % 2**64 for _ in range(BLOCKS_PER_PROMPT)]
        tokens = [dice.randrange(150_000) for _ in range(BLOCKS_PER_PROMPT * block_size)]
        parent = held[-1][-1] if held and len(held) % 2 else None
        events.append(
            BlockStored(
                block_hashes=list(hashes),
                parent_block_hash=parent,
                token_ids=list(tokens),
                block_size=block_size,
                medium="GPU",
                extra_keys=[None] * len(hashes),
                group_idx=0,
                kv_cache_spec_kind="full_attention",
                session_id=f"request-{len(payloads)}",
            )
        )
        made += len(hashes)
        held.append(hashes)
        last = tokens
        payloads.append(encode_batch(EventBatch(ts=1.0 + len(payloads), events=tuple(events))))
    return payloads, last


def measure_stream(payloads: list[bytes], num_blocks: int, last: list[int]) -> dict[str, float]:
    stream = EventStream("benchmark")
    stream.connected()
    start = time.process_time()
    for seq, payload in enumerate(payloads):
        stream.receive(seq, payload)
    both = time.process_time() - start
    start = time.process_time()
    for payload in payloads:
        decode_batch(payload)
    decode = time.process_time() - start
    stream.mirror.check_integrity()
    names = [f"request-{i}" for i in range(len(payloads))]
    start = time.process_time()
    for name in names:
        stream.resident_tokens(name)
    lookup = (time.process_time() - start) / len(names)
    start = time.process_time()
    for _ in range(20):
        stream.mirror.match_tokens(last)
    match = (time.process_time() - start) / 20
    return {
        "blocks": num_blocks,
        "blocks_per_s": num_blocks / both,
        "decode_share": decode / both,
        "batches_per_s": len(payloads) / both,
        "resident_tokens_us": lookup * 1e6,
        f"match_{len(last)}_tokens_us": match * 1e6,
    }


def measure_request_path(*, num_requests: int = 2000, num_documents: int = 10) -> dict[str, float]:
    """What following adds to one request: look at what is cached of it when its turn comes, note it
    as sent. The engine's cache is full, and 64 requests are in flight."""
    dice = random.Random(1)
    index, pressure, flight, tracker = (
        ContextIndex(),
        EvictionForecast(),
        InFlight(),
        DocumentTracker(),
    )
    index.eviction_forecast, flight.capacity_tokens = pressure, 100_000
    taken = []
    for number in range(num_requests):
        documents = dice.sample(range(500), num_documents)
        lengths = [200] * num_documents
        ends = document_ends(lengths)
        cached = index.cached_prefix(documents).cached_tokens
        name = f"r{number}"
        start = time.perf_counter()
        index.cached_prefix(documents)
        tracker.sent(name, documents, ends=ends)
        flight.sent(name, prompt_tokens=2100, cached_tokens=cached, block_size=16)
        turn = flight.next_turn(resident_tokens=100_000, is_batched=True)
        pressure.update(*turn, is_batched=True)
        taken.append(time.perf_counter() - start)
        index.insert(documents, lengths)
        if number >= 64:
            flight.stored(f"r{number - 64}", 2100)
        if index.num_tokens > 150_000:
            index.evict(index.num_tokens - 150_000)
    taken.sort()
    return {
        "request_path_p50_us": taken[len(taken) // 2] * 1e6,
        "request_path_p99_us": taken[len(taken) * 99 // 100] * 1e6,
    }


def measure_hook(payloads: list[bytes]) -> dict[str, float]:
    """Time of `put` in the engine's thread while the reporter waits for a proxy that hangs."""
    batches = [decode_batch(payload).events for payload in payloads]
    with socket.create_server(("127.0.0.1", 0)) as hanging:
        reporter = Reporter(f"http://127.0.0.1:{hanging.getsockname()[1]}", stream="benchmark")
        taken = []
        for step in range(2000):
            start = time.perf_counter()
            reporter.put(batches[step % len(batches)])
            taken.append(time.perf_counter() - start)
            time.sleep(0.001)  # the engine's step
        lost = reporter.num_lost
        hanging.close()
        reporter.close()
    taken.sort()
    return {
        "hook_put_p50_us": taken[len(taken) // 2] * 1e6,
        "hook_put_p99_us": taken[len(taken) * 99 // 100] * 1e6,
        "hook_lost": lost,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--blocks", type=int, default=200_000)
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    payloads, last = make_payloads(options.blocks, options.block_size)
    figures = measure_stream(payloads, options.blocks, last)
    figures |= measure_request_path() | measure_hook(payloads)
    if options.json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        print(f"{name:24} {value:12,.2f}")


if __name__ == "__main__":
    main()
