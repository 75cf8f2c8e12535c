"""Measure the cost of following an engine's cache: event rate, lookups, request path, engine hook.

    python -m benchmarks.kv_events --blocks 200000 --block-size 16 --json

Stream figures are process time of one thread. `request_path_*` is the wall time added to one
proxied request, in microseconds. `hook_put_*` is the wall time that the hook adds to an engine
step, in microseconds, with a proxy that accepts the connection and never responds.
"""

import argparse
import asyncio
import itertools
import json
import random
import socket
import time
from collections import deque

from ragboost.booster.tenants import TenantKey, Tenants
from ragboost.cache_sync.event_stream import EventStream
from ragboost.cache_sync.follower import CacheFollower
from ragboost.cache_sync.prompt_layout import PromptLayout
from ragboost.config import Settings
from ragboost.engine_hooks.events import (
    BlockRemoved,
    BlockStored,
    Event,
    EventBatch,
    decode_batch,
    encode_batch,
)
from ragboost.engine_hooks.reporter import Reporter
from ragboost.index import IndexEntry

BLOCKS_PER_PROMPT = 250
PROMPTS_HELD = 400


def make_batches(num_blocks: int, block_size: int) -> tuple[list[bytes], list[int]]:
    """Return encoded event batches and the token ids of the last prompt.

    Each batch stores one prompt and, once PROMPTS_HELD are held, evicts the oldest; every second
    prompt extends the previous one.
    """
    dice, numbers = random.Random(0), itertools.count(1)
    held: deque[list[int]] = deque()
    encoded: list[bytes] = []
    made, last = 0, [0]
    while made < num_blocks:
        events: list[Event] = []
        if len(held) > PROMPTS_HELD:
            evicted = reversed(held.popleft())
            events = [BlockRemoved(block_hashes=[h], medium="GPU", group_idx=0) for h in evicted]
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
                session_id=f"request-{len(encoded)}",
            )
        )
        made += len(hashes)
        held.append(hashes)
        last = tokens
        encoded.append(encode_batch(EventBatch(ts=1.0 + len(encoded), events=tuple(events))))
    return encoded, last


def measure_stream(encoded: list[bytes], num_blocks: int, last: list[int]) -> dict[str, float]:
    stream = EventStream("benchmark")
    stream.connected()
    start = time.process_time()
    for seq, data in enumerate(encoded):
        stream.receive(seq, data)
    both = time.process_time() - start
    start = time.process_time()
    for data in encoded:
        decode_batch(data)
    decode = time.process_time() - start
    stream.mirror.check_integrity()
    names = [f"request-{i}" for i in range(len(encoded))]
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
        "batches_per_s": len(encoded) / both,
        "resident_tokens_us": lookup * 1e6,
        f"match_{len(last)}_tokens_us": match * 1e6,
    }


def measure_request_path(*, num_requests: int = 2000, num_documents: int = 10) -> dict[str, float]:
    """Measure what following adds to one request: the search for its cached prefix, and `on_sent`.

    64 requests are in flight, more than the engine's cache holds.
    """
    dice, name = random.Random(1), "backend"
    key, tenants = TenantKey("model", ""), Tenants(Settings())
    follower, stream = CacheFollower(name, tenants), EventStream()
    stream.connected()
    stream.receive(0, make_batches(BLOCKS_PER_PROMPT, 16)[0][0])
    follower.streams["stream"], follower.capacity_tokens = stream, 100_000
    index = tenants.get(key).booster(name).index
    asyncio.run(follower.step())
    lengths, frames, taken = (200,) * num_documents, (5,) * num_documents, []
    for number in range(num_requests):
        documents = tuple(dice.sample(range(500), num_documents))
        layout = PromptLayout(
            key, documents, lengths, frames=frames, tokens_before=8, prompt_tokens=2100
        )
        start = time.perf_counter()
        cached = index.cached_prefix(documents).cached_tokens
        layout = follower.on_sent(f"r{number}", layout, cached_tokens=cached)
        taken.append(time.perf_counter() - start)
        index.insert(documents, lengths)
        if number >= 64:
            follower.on_failure(f"r{number - 64}", layout, IndexEntry((), 0))
        if index.num_tokens > 150_000:
            index.evict(index.num_tokens - 150_000)
    taken.sort()
    return {
        "request_path_p50_us": taken[len(taken) // 2] * 1e6,
        "request_path_p99_us": taken[len(taken) * 99 // 100] * 1e6,
    }


def measure_hook(encoded: list[bytes]) -> dict[str, float]:
    """Measure `put` in the engine's thread while the reporter waits for a proxy that hangs."""
    batches = [decode_batch(data).events for data in encoded]
    with socket.create_server(("127.0.0.1", 0)) as hanging:
        reporter = Reporter(f"http://127.0.0.1:{hanging.getsockname()[1]}", stream="benchmark")
        taken = []
        for step in range(2000):
            start = time.perf_counter()
            reporter.put(batches[step % len(batches)])
            taken.append(time.perf_counter() - start)
            time.sleep(0.001)  # the engine's step
        dropped = reporter.num_dropped
        hanging.close()
        reporter.close()
    taken.sort()
    return {
        "hook_put_p50_us": taken[len(taken) // 2] * 1e6,
        "hook_put_p99_us": taken[len(taken) * 99 // 100] * 1e6,
        "hook_dropped": dropped,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--blocks", type=int, default=200_000, help="blocks stored and removed")
    parser.add_argument("--block-size", type=int, default=16, help="tokens per block")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    encoded, last = make_batches(options.blocks, options.block_size)
    figures = measure_stream(encoded, options.blocks, last)
    figures |= measure_request_path() | measure_hook(encoded)
    if options.json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        print(f"{name:24} {value:12,.2f}")


if __name__ == "__main__":
    main()
