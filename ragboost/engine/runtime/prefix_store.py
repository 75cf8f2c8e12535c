"""The prefix cache with its tensors: hands cached KV to sequences and takes theirs.

Joins `BlockCache` (which blocks) and `KVPool` (where they lie). Only exact KV passes through here.
"""

from collections.abc import Iterable

from ragboost.chunk_cache.eviction import EvictionPolicy
from ragboost.engine.runtime.kv import KVLayout, KVPool
from ragboost.engine.runtime.prefix_cache import BlockCache, Event
from ragboost.engine.runtime.request import EngineRequest


class PrefixStore:
    """A prefix cache of `capacity_tokens` tokens over real KV.

    Args:
        policy: which block goes first when it is full; None: the least recently used.

    Attributes:
        cache: the book-keeping.
        queried_tokens, hit_tokens: prompt tokens looked up and found, since the start.
    """

    def __init__(
        self,
        layout: KVLayout,
        *,
        capacity_tokens: int,
        block_size: int,
        policy: EvictionPolicy | None = None,
    ) -> None:
        num_blocks = capacity_tokens // block_size
        self.cache = BlockCache(num_blocks, block_size, policy=policy)
        self.block_size = block_size
        self.queried_tokens = 0
        self.hit_tokens = 0
        self._pool = KVPool(layout, num_blocks, block_size)

    @property
    def usage(self) -> float:
        """Share of the slots that hold a block."""
        return len(self.cache) / self.cache.num_blocks

    def load(self, sequence: EngineRequest) -> None:
        """Extend what is computed of a prompt by what is cached, and hold the blocks.

        Does nothing unless all that is computed is held too, and exact. At least the last prompt
        token stays to be computed: its logits are needed.
        """
        start = len(sequence.held)
        if sequence.num_computed != start * self.block_size or sequence.exact_until is not None:
            return
        most = (sequence.num_prompt_tokens - 1) // self.block_size
        keys = sequence.block_keys(most, self.block_size)
        blocks = self.cache.match(keys[start:])
        if not blocks:
            return
        if start and not self.cache.holds(sequence.held[-1]):  # cleared since, then stored again
            return
        assert sequence.kv is not None, "load before the sequence has room"
        self.cache.acquire(blocks)
        self._pool.load([b.slot for b in blocks], sequence.kv, start=sequence.num_computed)
        sequence.held += blocks
        tokens = len(blocks) * self.block_size
        sequence.num_computed += tokens
        sequence.cached_tokens += tokens
        self.hit_tokens += tokens

    def save(self, sequence: EngineRequest) -> None:
        """Put all full blocks computed since the last call into the cache, while there is room."""
        start, end = len(sequence.held), sequence.num_computed
        if sequence.exact_until is not None:
            end = min(end, sequence.exact_until)
        full = end // self.block_size
        if start >= full or sequence.rows is not None:
            return
        assert sequence.kv is not None, "save after the sequence has ended"
        inserted = self.cache.insert(
            sequence.block_keys(full, self.block_size)[start:],
            sequence.token_ids[start * self.block_size : full * self.block_size],
            parent=sequence.held[-1] if sequence.held else None,
            salt=sequence.salt,
            session_id=sequence.session_id,
        )
        # A block that another sequence stored meanwhile is held as it is; new ones are the tail.
        new = [i for i, item in enumerate(inserted) if item.is_new]
        if new:
            slots = [inserted[i].block.slot for i in new]
            self._pool.store(slots, sequence.kv, start=(start + new[0]) * self.block_size)
        sequence.held += [item.block for item in inserted]

    def release(self, sequence: EngineRequest) -> None:
        """Let go of everything that `sequence` holds; its blocks stay cached, used just now."""
        self.cache.release(sequence.held)
        sequence.held = []
        sequence.kv = None

    def look_ahead(self, waiting: Iterable[EngineRequest]) -> None:
        """Tell the policy of the sequences that wait, the next one first."""
        self.cache.look_ahead(
            sequence.block_keys(sequence.num_prompt_tokens // self.block_size, self.block_size)
            for sequence in waiting
        )

    def take_events(self) -> list[Event]:
        """What was stored, removed and cleared since the last call."""
        return self.cache.take_events()
