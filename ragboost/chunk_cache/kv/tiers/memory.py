"""Chunk KV in one kind of memory, bounded in bytes; the policy's first choice goes when it is full.

Knows sizes, keys and a policy. Does not know where KV comes from or where it goes, and is not safe
to use from several threads by itself.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import torch

from ragboost.chunk_cache.eviction import Replacement, Use
from ragboost.chunk_cache.kv.store import ChunkKV, check_books
from ragboost.errors import ChunkCacheError

PIN_S = 60.0
"""Seconds for which KV that was loaded for a waiting request is kept for it."""
_ASSUMED_S_PER_TOKEN = 1e-3


class Dropped(NamedTuple):
    """KV that had to go."""

    key: str
    chunk: ChunkKV


class MemoryTier:
    """A bounded map from keys to KV on one device.

    Args:
        capacity_bytes: KV kept at most.
        device: where its tensors are.
        policy: what goes first.
        clock: seconds.
    """

    def __init__(
        self,
        *,
        capacity_bytes: int,
        device: torch.device,
        policy: Replacement,
        clock: Callable[[], float],
    ) -> None:
        if capacity_bytes < 1:
            raise ChunkCacheError(f"capacity_bytes must be at least 1, got {capacity_bytes}")
        self.capacity_bytes = capacity_bytes
        self.device = device
        self.size_bytes = 0
        self._policy, self._clock = policy, clock
        self._chunks: dict[str, ChunkKV] = {}
        self._pinned: dict[str, float] = {}  # until when

    def __contains__(self, key: str) -> bool:
        return key in self._chunks

    def __len__(self) -> int:
        return len(self._chunks)

    def items(self) -> list[Dropped]:
        """Everything in it."""
        return [Dropped(key, chunk) for key, chunk in self._chunks.items()]

    def get(self, key: str) -> ChunkKV | None:
        """Return KV, mark it as used, and let go of its pin."""
        chunk = self._chunks.get(key)
        if chunk is not None:
            self._pinned.pop(key, None)
            self._policy.used(key, self._use(chunk, is_hit=True))
        return chunk

    def put(self, key: str, chunk: ChunkKV, *, is_pinned: bool = False) -> list[Dropped] | None:
        """Store KV in the place of what is there, on this tier's device.

        Returns:
            What had to go for it, its own older KV not among them; None: it does not fit beside
            what is pinned, and nothing has changed.
        """
        going = self._choose(chunk.size_bytes - self._size_of(key), keep=key)
        if going is None:
            return None
        dropped = [Dropped(other, self._chunks[other]) for other in going]
        for other in going:
            self.discard(other)
        if key in self._chunks:
            self.size_bytes -= self._chunks[key].size_bytes
        else:
            self._policy.used(key, self._use(chunk, is_hit=False))
        self._chunks[key] = moved(chunk, self.device)
        self.size_bytes += chunk.size_bytes
        if is_pinned:
            self._pinned[key] = self._clock() + PIN_S
        return dropped

    def discard(self, key: str) -> None:
        """Drop KV; an absent key does nothing."""
        chunk = self._chunks.pop(key, None)
        if chunk is not None:
            self.size_bytes -= chunk.size_bytes
            self._pinned.pop(key, None)
            self._policy.evicted(key)

    def clear(self) -> None:
        """Drop everything."""
        for key in list(self._chunks):
            self.discard(key)

    def check_integrity(self) -> None:
        """Raise where the books do not add up.

        Raises:
            ChunkCacheError: with the numbers.
        """
        check_books(self._chunks.values(), self.size_bytes, capacity_bytes=self.capacity_bytes)

    def _size_of(self, key: str) -> int:
        return self._chunks[key].size_bytes if key in self._chunks else 0

    def _choose(self, size: int, *, keep: str) -> list[str] | None:
        """Keys to drop so that so many bytes fit; None where too much is pinned."""
        missing = self.size_bytes + size - self.capacity_bytes
        if missing <= 0:
            return []
        now = self._clock()
        self._pinned = {key: until for key, until in self._pinned.items() if until > now}
        going = []
        free = [key for key in self._chunks if key not in self._pinned and key != keep]
        for key in sorted(free, key=self._policy.priority):
            going.append(key)
            missing -= self._chunks[key].size_bytes
            if missing <= 0:
                return going
        return None

    def _use(self, chunk: ChunkKV, *, is_hit: bool) -> Use:
        seconds = chunk.compute_s
        if seconds is None:
            seconds = len(chunk.tokens) * _ASSUMED_S_PER_TOKEN
        return Use(self._clock(), chunk.size_bytes, seconds, is_hit)


def moved(chunk: ChunkKV, device: torch.device) -> ChunkKV:
    """Return a chunk whose tensors are on a device; the same one where they are."""
    if all(keys.device == device for keys, _ in chunk.layers):
        return chunk
    layers = tuple((keys.to(device), values.to(device)) for keys, values in chunk.layers)
    return replace(chunk, layers=layers)
