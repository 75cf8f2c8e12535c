"""Measure the cost of following an engine's cache: event rate, lookups, request path, engine hook.

    python -m benchmarks.proxy.kv_events --blocks 200000 --block-size 16 --json

Stream figures are process time of one thread. `request_path_*` is the wall time added to one
proxied request, in microseconds. `hook_put_*` is the wall time that the hook adds to an engine
step, in microseconds, with a proxy that accepts the connection and never responds.
"""

import asyncio
import random
import socket
import time

from benchmarks.command import make_parser, report
from benchmarks.scale.event_batches import event_batches
from ragboost.booster.tenants import TenantKey, Tenants
from ragboost.cache_events import BlockStored, decode_batch
from ragboost.cache_sync.event_stream import EventStream
from ragboost.cache_sync.follower import CacheFollower
from ragboost.cache_sync.prompt_layout import PromptLayout
from ragboost.config import Settings
from ragboost.engine_hooks.reporter import Reporter
from ragboost.index import IndexEntry

BLOCKS_PER_PROMPT = 250
CACHE_PROMPTS = 400  # of more, the oldest is evicted


def make_batches(num_prompts: int, block_size: int) -> list[bytes]:
    return event_batches(
        num_prompts,
        num_blocks=BLOCKS_PER_PROMPT,
        block_size=block_size,
        cache_prompts=CACHE_PROMPTS,
        is_chained=True,
        extra_keys=[None] * BLOCKS_PER_PROMPT,
        kv_cache_spec_kind="full_attention",
    )


def measure_stream(encoded: list[bytes]) -> dict[str, float]:
    num_evicted = max(0, len(encoded) - CACHE_PROMPTS)
    num_blocks = BLOCKS_PER_PROMPT * (len(encoded) + num_evicted)
    *_, stored = decode_batch(encoded[-1]).events
    assert isinstance(stored, BlockStored)
    last = stored.token_ids
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
    names = [f"{number:032x}" for number in range(len(encoded))]
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
    stream.receive(0, make_batches(1, 16)[0])
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
    parser = make_parser(__doc__)
    parser.add_argument("--blocks", type=int, default=200_000, help="blocks stored")
    parser.add_argument("--block-size", type=int, default=16, help="tokens per block")
    options = parser.parse_args()
    encoded = make_batches(options.blocks // BLOCKS_PER_PROMPT, options.block_size)
    figures = measure_stream(encoded)
    figures |= measure_request_path() | measure_hook(encoded)
    report(figures, options, show)


def show(figures: dict[str, float]) -> None:
    for name, value in figures.items():
        print(f"{name:24} {value:12,.2f}")


if __name__ == "__main__":
    main()
