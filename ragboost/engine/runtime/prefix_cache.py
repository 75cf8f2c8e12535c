"""Which blocks of tokens the KV pool holds: hash-chained blocks, leaf-only eviction, reference
counts.

Knows keys, tokens and slots. Does not know tensors, models or requests; which leaf goes first is up
to a replacement policy.
"""

import hashlib
import heapq
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ragboost.chunk_cache.eviction import EvictionPolicy, Use

_ROOT = b"ragboost-prefix-cache"


def block_key(parent: bytes | None, tokens: Sequence[int], *, salt: str | None = None) -> bytes:
    """Hash a block, chained to its parent, so that equal keys mean equal token prefixes.

    Args:
        parent: key of the block in front; None for the first block.
        tokens: the ids of a full block.
        salt: namespace (`cache_salt`); only read for the first block, inherited by the rest.

    Returns:
        32 bytes.
    """
    digest = hashlib.sha256(parent if parent is not None else _ROOT)
    if parent is None and salt is not None:
        digest.update(salt.encode("utf-8", "surrogatepass"))
        digest.update(b"\0")
    digest.update(array("q", tokens).tobytes())
    return digest.digest()


@dataclass(slots=True, eq=False)
class CacheBlock:
    """One cached block.

    Attributes:
        key: chained hash, see `block_key`.
        slot: row of the KV pool that holds its keys and values.
        parent: the block in front; None at the root.
        num_children: cached blocks that continue this one; only leaves are evicted.
        num_users: running requests that hold it; a held block is never evicted.
        last_used: tick of the cache's clock; once a block is free, its parent's is not older.
    """

    key: bytes
    slot: int
    parent: "CacheBlock | None"
    num_children: int = 0
    num_users: int = 0
    last_used: int = 0


class Inserted(NamedTuple):
    """A block after `insert`; its KV must be written to the pool where `is_new`."""

    block: CacheBlock
    is_new: bool


@dataclass(frozen=True, slots=True)
class Stored:
    """Blocks entered the cache, one after the other, below `parent`."""

    keys: tuple[bytes, ...]
    parent: bytes | None
    tokens: tuple[int, ...]
    salt: str | None
    session_id: str | None


@dataclass(frozen=True, slots=True)
class Removed:
    """A block was evicted."""

    key: bytes


@dataclass(frozen=True, slots=True)
class Cleared:
    """All blocks left the cache."""


Event = Stored | Removed | Cleared


class _Leaf(NamedTuple):
    """An offer to evict a block. It goes stale when the block is used again, gets a child or
    leaves, and is dropped when it is popped."""

    priority: float
    tie: int
    block: CacheBlock
    last_used: int


class BlockCache:
    """A forest of blocks of `block_size` tokens in `num_blocks` slots.

    Every operation costs O(blocks touched), eviction O(log num_blocks) per block; the first
    eviction after a `look_ahead` O(num_blocks).

    Args:
        policy: which free leaf goes first; None: the least recently used.
    """

    def __init__(
        self, num_blocks: int, block_size: int, *, policy: EvictionPolicy | None = None
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._policy = policy
        self._blocks: dict[bytes, CacheBlock] = {}
        self._free = list(range(num_blocks - 1, -1, -1))
        self._clock = 0
        self._leaves: list[_Leaf] = []
        self._num_pushes = 0
        self._is_reordered = False
        self._events: list[Event] = []

    def __len__(self) -> int:
        return len(self._blocks)

    def __repr__(self) -> str:
        return f"PrefixCache({self.num_blocks}, {self.block_size}) with {len(self)} blocks"

    def match(self, keys: Sequence[bytes]) -> list[CacheBlock]:
        """Return the blocks of the longest cached prefix of `keys`. Changes nothing."""
        found = []
        for key in keys:
            block = self._blocks.get(key)
            if block is None:
                break
            found.append(block)
        return found

    def acquire(self, blocks: Sequence[CacheBlock]) -> None:
        """Hold `blocks` for a running request until `release`; marks them as used now."""
        self._clock += 1
        for block in blocks:
            assert self.holds(block), f"block {block.key.hex()[:8]} is not in the cache"
            block.num_users += 1
            self._use(block, is_hit=True)

    def release(self, blocks: Sequence[CacheBlock]) -> None:
        """Give up blocks that `acquire` or `insert` handed out, root first, and mark them as used
        now. Blocks that `clear` has dropped meanwhile are skipped."""
        self._clock += 1
        for block in blocks:
            if not self.holds(block):
                continue
            assert block.num_users > 0, f"block {block.key.hex()[:8]} released too often"
            block.num_users -= 1
            block.last_used = self._clock
            self._offer(block)

    def insert(
        self,
        keys: Sequence[bytes],
        tokens: Sequence[int],
        *,
        parent: CacheBlock | None,
        salt: str | None = None,
        session_id: str | None = None,
    ) -> list[Inserted]:
        """Add consecutive blocks below `parent` and hold them for the caller.

        Evicts leaves as needed, the policy's first choice first, never a held block.

        Args:
            keys: of the blocks, in order; blocks that are there already are only held.
            tokens: the `len(keys) * block_size` ids in them.
            parent: the block in front, held by the caller; None at the root.
            salt: namespace, for the event.
            session_id: for the event.

        Returns:
            One entry per block; fewer than `keys` if all other slots are held or `parent` was
            dropped by `clear`.
        """
        assert len(tokens) == len(keys) * self.block_size, (len(tokens), len(keys))
        if parent is not None and not self.holds(parent):
            return []
        self._clock += 1
        done: list[Inserted] = []
        for key in keys:
            block = self._blocks.get(key)
            is_new = block is None
            if block is None:
                block = self._add(key, parent)
                if block is None:
                    break
            block.num_users += 1
            self._use(block, is_hit=not is_new)
            done.append(Inserted(block, is_new))
            parent = block
        self._record_stored(done, tokens, salt=salt, session_id=session_id)
        return done

    def evict(self, num_blocks: int) -> int:
        """Drop up to `num_blocks` leaves, the policy's first choice first; return how many. 0 does
        nothing."""
        if self._is_reordered:
            self._is_reordered = False
            self._leaves = []
            for block in self._blocks.values():
                self._offer(block)
        evicted = 0
        while evicted < num_blocks and self._leaves:
            leaf = heapq.heappop(self._leaves)
            if self._is_current(leaf):
                self._drop(leaf.block)
                evicted += 1
        return evicted

    def look_ahead(self, waiting: Iterable[Sequence[bytes]]) -> None:
        """Tell the policy which blocks waiting requests will use.

        Args:
            waiting: the keys of each prompt, the next one first. No more are read than fill the
                cache: what comes later could not be kept for them.
        """
        if self._policy is None or not self._policy.sees_queue:
            return
        window, num_keys = [], 0
        for keys in waiting:
            window.append(keys)
            num_keys += len(keys)
            if num_keys >= self.num_blocks:
                break
        self._policy.look_ahead(window)
        self._is_reordered = True

    def clear(self) -> None:
        """Drop everything, held blocks too: their holders keep private copies of the KV."""
        if self._policy is not None:
            for key in self._blocks:
                self._policy.evicted(key)
        self._blocks.clear()
        self._leaves.clear()
        self._free = list(range(self.num_blocks - 1, -1, -1))
        self._events.append(Cleared())

    def holds(self, block: CacheBlock) -> bool:
        """Whether `block` is still in the cache."""
        return self._blocks.get(block.key) is block

    def take_events(self) -> list[Event]:
        """Return what happened since the last call, in order."""
        events, self._events = self._events, []
        return events

    def check_integrity(self) -> None:
        """Check every invariant; O(num_blocks). Raises AssertionError with numbers."""
        blocks = list(self._blocks.values())
        assert len(blocks) <= self.num_blocks, f"{len(blocks)} blocks in {self.num_blocks} slots"
        slots = sorted([*self._free, *(block.slot for block in blocks)])
        assert slots == list(range(self.num_blocks)), f"slots lost or doubled: {slots}"
        children: dict[bytes, int] = {}
        for block in blocks:
            if block.parent is not None:
                assert self.holds(block.parent), f"slot {block.slot} outlived its parent"
                key = block.parent.key
                children[key] = children.get(key, 0) + 1
                is_older = block.parent.last_used < block.last_used
                assert block.num_users or not is_older, "parent is older than its free child"
                assert block.parent.num_users >= block.num_users, "child held, parent free"
        offered = {(leaf.last_used, leaf.block.slot) for leaf in self._leaves}
        for block in blocks:
            counted = children.get(block.key, 0)
            assert block.num_children == counted, (block.slot, block.num_children, counted)
            assert block.num_users >= 0, (block.slot, block.num_users)
            if self._is_evictable(block) and not self._is_reordered:
                assert (block.last_used, block.slot) in offered, f"slot {block.slot} is forgotten"

    def _is_evictable(self, block: CacheBlock) -> bool:
        return block.num_users == 0 and block.num_children == 0 and self.holds(block)

    def _is_current(self, leaf: _Leaf) -> bool:
        return leaf.last_used == leaf.block.last_used and self._is_evictable(leaf.block)

    def _use(self, block: CacheBlock, *, is_hit: bool) -> None:
        block.last_used = self._clock
        if self._policy is not None:
            size = float(self.block_size)
            self._policy.used(block.key, Use(self._clock, size, size, is_hit))

    def _offer(self, block: CacheBlock) -> None:
        if not self._is_evictable(block):
            return
        if len(self._leaves) > 4 * self.num_blocks + 64:  # mostly stale entries
            self._leaves = [leaf for leaf in self._leaves if self._is_current(leaf)]
            heapq.heapify(self._leaves)
        self._num_pushes += 1
        used = block.last_used
        priority = used if self._policy is None else self._policy.priority(block.key)
        heapq.heappush(self._leaves, _Leaf(priority, self._num_pushes, block, used))

    def _add(self, key: bytes, parent: CacheBlock | None) -> CacheBlock | None:
        if not self._free and not self.evict(1):
            return None
        block = CacheBlock(key, self._free.pop(), parent)
        if parent is not None:
            parent.num_children += 1
        self._blocks[key] = block
        return block

    def _drop(self, block: CacheBlock) -> None:
        del self._blocks[block.key]
        self._free.append(block.slot)
        self._events.append(Removed(block.key))
        if self._policy is not None:
            self._policy.evicted(block.key)
        if block.parent is not None:
            block.parent.num_children -= 1
            self._offer(block.parent)

    def _record_stored(
        self,
        done: Sequence[Inserted],
        tokens: Sequence[int],
        *,
        salt: str | None,
        session_id: str | None,
    ) -> None:
        """One event per run of new blocks. A block that was there already has a cached parent, so
        the new ones are always the tail."""
        first = next((i for i, item in enumerate(done) if item.is_new), len(done))
        if first == len(done):
            return
        assert all(item.is_new for item in done[first:]), "an old block below a new one"
        parent = done[first].block.parent
        self._events.append(
            Stored(
                keys=tuple(item.block.key for item in done[first:]),
                parent=parent.key if parent is not None else None,
                tokens=tuple(tokens[first * self.block_size : len(done) * self.block_size]),
                salt=salt,
                session_id=session_id,
            )
        )
