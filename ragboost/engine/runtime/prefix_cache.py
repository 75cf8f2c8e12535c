"""Bookkeeping of the prefix cache: hash-chained blocks, leaf-only eviction, reference counts. Tells
events as vLLM does. Does not know tensors or requests."""

import hashlib
import heapq
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ragboost.cache_events import AllBlocksCleared, BlockRemoved, BlockStored, Event

_ROOT = b"ragboost-prefix-cache"


def block_key(parent: bytes | None, tokens: Sequence[int], *, salt: str | None = None) -> bytes:
    """Hash a block, chained to its parent, so that equal keys mean equal token prefixes. The salt
    is that of the first block, whose children inherit it."""
    digest = hashlib.sha256(parent if parent is not None else _ROOT)
    if parent is None and salt is not None:
        digest.update(salt.encode("utf-8", "surrogatepass"))
        digest.update(b"\0")
    digest.update(array("q", tokens).tobytes())
    return digest.digest()


def event_hash(key: bytes) -> int:
    """Return the name of a block in events."""
    return int.from_bytes(key[-8:], "big")


@dataclass(slots=True, eq=False)
class CacheBlock:
    key: bytes
    slot: int  # row of the KV pool
    parent: "CacheBlock | None"  # None at the root
    num_children: int = 0  # only leaves are evicted
    num_users: int = 0  # running requests that hold it; a held block is never evicted
    last_used: int = 0  # a free block is never newer than its parent


class Inserted(NamedTuple):
    """Blocks now held by the caller, in the order of the keys."""

    blocks: list[CacheBlock]
    num_found: int  # leading ones with KV; that of the others must be written to the pool


class BlockCache:
    """A forest of blocks of `block_size` tokens in `num_blocks` slots. Every operation costs
    O(blocks touched), and O(num_blocks) more if it has to evict."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._blocks: dict[bytes, CacheBlock] = {}
        self._free = list(range(num_blocks - 1, -1, -1))
        self._clock = 0
        self._events: list[Event] = []

    def __len__(self) -> int:
        return len(self._blocks)

    def __repr__(self) -> str:
        return f"BlockCache({self.num_blocks}, {self.block_size}) with {len(self)} blocks"

    def match(self, keys: Sequence[bytes]) -> list[CacheBlock]:
        found = []
        for key in keys:
            block = self._blocks.get(key)
            if block is None:
                break
            found.append(block)
        return found

    def acquire(self, blocks: Sequence[CacheBlock]) -> None:
        self._clock += 1
        for block in blocks:
            assert self.holds(block), f"block {block.key.hex()[:8]} is not in the cache"
            self._use(block)

    def release(self, blocks: Sequence[CacheBlock]) -> None:
        """Release held blocks, root first, and mark them as used, except those `clear` dropped."""
        self._clock += 1
        for block in blocks:
            if not self.holds(block):
                continue
            assert block.num_users > 0, f"block {block.key.hex()[:8]} released too often"
            block.num_users -= 1
            block.last_used = self._clock

    def insert(
        self,
        keys: Sequence[bytes],
        tokens: Sequence[int],
        *,
        parent: CacheBlock | None,
        salt: str | None = None,
        session_id: str | None = None,
    ) -> Inserted:
        """Add consecutive blocks after `parent`, which the caller holds, and hold them for it,
        evicting free leaves: fewer if all others are held, none if `clear` has dropped `parent`."""
        size = self.block_size
        assert len(tokens) == len(keys) * size, (len(tokens), len(keys))
        blocks: list[CacheBlock] = []
        if parent is not None and not self.holds(parent):
            return Inserted(blocks, 0)
        self._clock += 1
        for block in self.match(keys):
            self._use(block)
            blocks.append(block)
        num_found = len(blocks)
        event_parent = parent = blocks[-1] if blocks else parent
        missing = keys[num_found:]
        assert not any(key in self._blocks for key in missing), "a cached block below a new one"
        self.evict(len(missing) - len(self._free))
        for key in missing[: len(self._free)]:
            parent = self._add(key, parent)
            self._use(parent)
            blocks.append(parent)
        if new := blocks[num_found:]:
            # The first block of a prompt has the salt; the rest inherit it by their hashes.
            first = [salt] if event_parent is None and salt is not None else None
            self._events.append(
                BlockStored(
                    block_hashes=[event_hash(block.key) for block in new],
                    parent_block_hash=event_hash(event_parent.key) if event_parent else None,
                    token_ids=list(tokens[num_found * size : len(blocks) * size]),
                    block_size=size,
                    medium="GPU",  # as engines say on a CPU, too
                    extra_keys=[first, *[None] * (len(new) - 1)],
                    group_idx=0,
                    kv_cache_spec_kind="full_attention",
                    session_id=session_id,
                )
            )
        return Inserted(blocks, num_found)

    def evict(self, num_blocks: int) -> int:
        """Evict up to `num_blocks` free leaves, the least recently used first; return how many."""
        if num_blocks <= 0:
            return 0
        leaves = [_rank(block) for block in self._blocks.values() if _is_free_leaf(block)]
        heapq.heapify(leaves)
        evicted = 0
        while evicted < num_blocks and leaves:
            block = heapq.heappop(leaves)[-1]
            self._drop(block)
            evicted += 1
            if block.parent is not None and _is_free_leaf(block.parent):
                heapq.heappush(leaves, _rank(block.parent))
        return evicted

    def clear(self) -> None:
        """Drop all blocks, held ones too: their holders have private copies of the KV."""
        self._blocks.clear()
        self._free = list(range(self.num_blocks - 1, -1, -1))
        self._events.append(AllBlocksCleared())

    def holds(self, block: CacheBlock) -> bool:
        return self._blocks.get(block.key) is block

    def take_events(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def _use(self, block: CacheBlock) -> None:
        block.num_users += 1
        block.last_used = self._clock

    def _add(self, key: bytes, parent: CacheBlock | None) -> CacheBlock:
        block = CacheBlock(key, self._free.pop(), parent)
        if parent is not None:
            parent.num_children += 1
        self._blocks[key] = block
        return block

    def _drop(self, block: CacheBlock) -> None:
        del self._blocks[block.key]
        self._free.append(block.slot)
        name = event_hash(block.key)
        self._events.append(BlockRemoved(block_hashes=[name], medium="GPU", group_idx=0))
        if block.parent is not None:
            block.parent.num_children -= 1


def _rank(block: CacheBlock) -> tuple[int, int, CacheBlock]:
    return block.last_used, block.slot, block


def _is_free_leaf(block: CacheBlock) -> bool:
    return block.num_users == 0 and block.num_children == 0
