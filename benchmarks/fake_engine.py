"""FakeEngine as a process, which benchmarks start, kill and start again.

    python -m benchmarks.fake_engine PORT --floods
    python -m benchmarks.fake_engine PORT --prompts FILE

It publishes its cache events over ZeroMQ. With `--floods` it publishes, at intervals, many
thousands of events of sequences that no request has: stored, then removed. With `--prompts` it
writes down every prompt before it answers, one JSON text a line.
"""

import argparse
import json
import random
import time
from pathlib import Path
from typing import Any

from aiohttp import web

from tests.fakes import FakeEngine
from tests.fakes.engine import Received

CAPACITY_TOKENS = 60_000
_FLOOD_EVERY_S = 20.0
_FLOOD_BATCHES = 400
_BLOCKS = 16


class RecordingEngine(FakeEngine):
    """FakeEngine that keeps no requests, and may write their prompts to a file."""

    def __init__(self, port: int, prompts: Path | None) -> None:
        super().__init__(port=port, events=True, capacity_tokens=CAPACITY_TOKENS)
        self._file = prompts.open("a", encoding="utf-8") if prompts else None

    def _record(self, request: web.Request, body: bytes, connection: int) -> Received:
        received: Any = super()._record(request, body, connection)
        if received.prompt and self._file:
            self._file.write(json.dumps(received.prompt) + "\n")
            self._file.flush()
        self.requests.clear()
        self.probes.clear()
        return received  # type: ignore[no-any-return]

    def flood(self, rng: random.Random) -> None:
        """Publish events of many sequences."""
        assert self.events is not None
        size = self.cache.block_size
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
            removed = {"block_hashes": hashes[::-1], "medium": "GPU", "group_idx": 0}
            self.events.publish_events([stored])
            self.events.publish_events([{"type": "BlockRemoved", **removed}])


def main() -> None:
    """Serve until the process is killed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("port", type=int)
    parser.add_argument("--prompts", type=Path, help="file of all prompts")
    parser.add_argument("--floods", action="store_true", help="of cache events")
    args = parser.parse_args()
    rng = random.Random(0)
    with RecordingEngine(args.port, args.prompts) as engine:
        while True:
            time.sleep(_FLOOD_EVERY_S)
            if args.floods:
                engine.flood(rng)


if __name__ == "__main__":
    main()
