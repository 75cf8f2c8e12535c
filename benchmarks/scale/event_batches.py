"""Encoded cache events of an engine, prompt by prompt."""

import random
from collections import deque
from typing import Any

from ragboost.cache_events import BlockRemoved, BlockStored, EventBatch, encode_batch


def event_batches(
    num: int,
    *,
    num_blocks: int,
    block_size: int,
    cache_prompts: int | None = None,
    is_chained: bool = False,
    **fields: Any,
) -> list[bytes]:
    """Return a batch per prompt, which stores `num_blocks` new blocks.

    Of more than `cache_prompts` the oldest prompt's blocks are removed before. If chained, every
    second prompt extends the previous one. Further fields are those of `BlockStored`.
    """
    rng = random.Random(0)
    cached: deque[list[int | bytes]] = deque()
    batches = []
    for number in range(num):
        hashes: list[int | bytes] = [rng.getrandbits(64) for _ in range(num_blocks)]
        removed: list[BlockRemoved] = []
        if cache_prompts is not None and len(cached) >= cache_prompts:
            evicted = cached.popleft()[::-1]
            removed = [BlockRemoved(block_hashes=evicted, medium="GPU", group_idx=0)]
        stored = BlockStored(
            block_hashes=hashes,
            parent_block_hash=cached[-1][-1] if is_chained and number % 2 else None,
            token_ids=[rng.randrange(150_000) for _ in range(num_blocks * block_size)],
            block_size=block_size,
            medium="GPU",
            group_idx=0,
            session_id=f"{number:032x}",
            **fields,
        )
        cached.append(hashes)
        batches.append(encode_batch(EventBatch(float(number), [*removed, stored], 0)))
    return batches
