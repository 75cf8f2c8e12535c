"""Small prefix cache that evicts and publishes events as vLLM does."""

import hashlib
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from ragboost.cache_events import (
    AllBlocksCleared,
    BlockHash,
    BlockRemoved,
    BlockStored,
    Event,
    EventBatch,
)


def chain_hash(parent: BlockHash | None, tokens: Sequence[int], *, salt: str = "") -> int:
    text = repr((parent, tuple(tokens), salt if parent is None else ""))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


@dataclass
class ToyCache:
    """Physical blocks by id, least recently used first; equal blocks may exist twice.

    `is_shared=True` keeps one copy per hash, as SGLang's tree does.
    """

    num_blocks: int = 16
    block_size: int = 4
    is_shared: bool = False
    blocks: "OrderedDict[int, int]" = field(default_factory=OrderedDict)  # id -> hash
    events: list[Event] = field(default_factory=list)
    next_id: int = 0
    clock: float = 1.0

    def hashes(self, tokens: Sequence[int], *, salt: str = "") -> list[int]:
        found: list[int] = []
        for start in range(0, len(tokens) - self.block_size + 1, self.block_size):
            parent = found[-1] if found else None
            found.append(chain_hash(parent, tokens[start : start + self.block_size], salt=salt))
        return found

    def cached_tokens(self, tokens: Sequence[int], *, salt: str = "") -> int:
        held, count = set(self.blocks.values()), 0
        for block_hash in self.hashes(tokens, salt=salt):
            if block_hash not in held:
                break
            count += 1
        return count * self.block_size

    def run(
        self, tokens: Sequence[int], request_id: str, *, salt: str = "", again: int = 0
    ) -> None:
        """Serve one prompt; compute and store its last `again` cached blocks a second time."""
        hashes = self.hashes(tokens, salt=salt)
        hit = self.cached_tokens(tokens, salt=salt) // self.block_size
        hit = max(0, hit - (0 if self.is_shared else again))
        for block_id in [i for i, h in self.blocks.items() if h in hashes[:hit]]:
            self.blocks.move_to_end(block_id)
        new = hashes[hit : hit + self.num_blocks - hit]
        while len(self.blocks) + len(new) > self.num_blocks:
            _, victim = self.blocks.popitem(last=False)
            self.events.append(BlockRemoved(block_hashes=[victim], medium="GPU", group_idx=0))
        if not new:
            return
        # vLLM frees the tail of a prompt first, so later blocks are evicted earlier.
        ids = list(range(self.next_id, self.next_id + len(new)))
        self.next_id += len(new)
        for block_id, block_hash in reversed(list(zip(ids, new, strict=True))):
            self.blocks[block_id] = block_hash
        size = self.block_size
        self.events.append(
            BlockStored(
                block_hashes=list(new),
                parent_block_hash=hashes[hit - 1] if hit else None,
                token_ids=list(tokens[hit * size : (hit + len(new)) * size]),
                block_size=size,
                medium="GPU",
                extra_keys=[
                    [salt] if salt and not hit and not i else None for i in range(len(new))
                ],
                group_idx=0,
                kv_cache_spec_kind="full_attention",
                session_id=request_id,
            )
        )

    def clear(self) -> None:
        self.blocks.clear()
        self.events.append(AllBlocksCleared())

    def take(self) -> EventBatch:
        events, self.events = self.events, []
        self.clock = max(self.clock + 1e-3, time.time())
        return EventBatch(ts=self.clock, events=tuple(events), dp_rank=0)
