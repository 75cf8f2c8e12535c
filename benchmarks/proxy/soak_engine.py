"""FakeEngine as a process, with floods of cache events.

    python -m benchmarks.proxy.soak_engine PORT

Started, killed and started again by `benchmarks.proxy.soak`. It publishes its cache events over
ZeroMQ and, at intervals, many thousands of events of sequences that no request has: stored, then
removed.
"""

import random
import sys
import time

from tests.fakes import FakeEngine

CAPACITY_TOKENS = 60_000
_FLOOD_EVERY_S = 20.0
_FLOOD_BATCHES = 400
_BLOCKS = 16


def main() -> None:
    """Serve until the process is killed."""
    engine = FakeEngine(port=int(sys.argv[1]), events=True, capacity_tokens=CAPACITY_TOKENS)
    rng = random.Random(0)
    with engine:
        flood_at = time.monotonic() + _FLOOD_EVERY_S
        while True:
            time.sleep(0.5)
            engine.requests.clear()
            engine.probes.clear()
            if time.monotonic() >= flood_at:
                _flood(engine, rng)
                flood_at = time.monotonic() + _FLOOD_EVERY_S


def _flood(engine: FakeEngine, rng: random.Random) -> None:
    assert engine.events is not None
    size = engine.cache.block_size
    for _ in range(_FLOOD_BATCHES):
        hashes = [rng.getrandbits(63) for _ in range(_BLOCKS)]
        stored = {
            "type": "BlockStored",
            "block_hashes": hashes,
            "parent_block_hash": None,
            "token_ids": [rng.getrandbits(20) for _ in range(_BLOCKS * size)],
            "block_size": size,
            "lora_id": None,
            "medium": "GPU",
            "lora_name": None,
            "extra_keys": [None] * _BLOCKS,
            "group_idx": 0,
            "kv_cache_spec_kind": "full_attention",
            "session_id": None,
        }
        removed = {
            "type": "BlockRemoved",
            "block_hashes": hashes[::-1],
            "medium": "GPU",
            "group_idx": 0,
        }
        engine.events.publish_events([stored])
        engine.events.publish_events([removed])


if __name__ == "__main__":
    main()
