"""Keep the KV of chunks in memory, by what they were computed from; the least recently used go
first.

Knows sizes and keys. Does not know models. Stored tensors are shared between requests and are never
changed: users copy out of them.
"""

import hashlib
import json
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from ragboost.chunk_cache.craft.influence import Influence
from ragboost.errors import ChunkCacheError

LAYOUT_VERSION = 1
"""Changes when stored KV means something else than before, so that older KV is not found."""


@dataclass(frozen=True, slots=True)
class Identity:
    """What, besides the tokens, decides the KV of a chunk.

    Attributes:
        model: of the weights, such as `ModelAdapter.fingerprint()`.
        tokenizer: of the tokenizer that made the ids; empty where ids are given.
        dtype: of the KV.
        lora: the LoRA adapter in use; empty for none.
        recipe: how chunks were prepared, such as the neighbours they attended to; empty: plain.
        salt: of a tenant who shares nothing with others; empty: none.
    """

    model: str
    tokenizer: str = ""
    dtype: str = ""
    lora: str = ""
    recipe: str = ""
    salt: str = ""


@dataclass(frozen=True, slots=True)
class ChunkKV:
    """KV of a run of tokens, and where it was computed.

    Attributes:
        tokens: the ids.
        base: position of the first token when it was computed.
        layers: keys (after RoPE) and values per layer, (1, kv heads, tokens, head_dim) each.
        regime: identity of the rotation speeds, see `ModelAdapter.regime`.
        length: of the prompt it was computed in; decides the rotation speeds.
        sensitivity: how much each token's keys depend on other chunks, (tokens,); None: not
            measured.
        influence: how much its tokens looked at the chunks it was computed after; None: not
            measured.
        exact_after: digest of all tokens before it (`tokens_digest`), where the KV is what an
            ordinary forward over them and the chunk gives; None: it is not, as after neighbours
            that had not seen each other.
        compute_s: seconds that computing it took; None: not measured.
    """

    tokens: tuple[int, ...]
    base: int
    layers: Sequence[tuple[torch.Tensor, torch.Tensor]]
    regime: str
    length: int
    sensitivity: torch.Tensor | None = None
    influence: Influence | None = None
    exact_after: str | None = None
    compute_s: float | None = None

    @property
    def size_bytes(self) -> int:
        return sum(keys.nbytes + values.nbytes for keys, values in self.layers)


def tokens_digest(tokens: Sequence[int]) -> str:
    """Return the identity of a run of tokens (32 hex digits)."""
    return hashlib.sha256(json.dumps([int(token) for token in tokens]).encode()).hexdigest()[:32]


def chunk_key(
    identity: Identity, *, regime: str, system: Sequence[int], tokens: Sequence[int]
) -> str:
    """Return the key of a chunk computed after a system prompt (32 hex digits).

    A system prompt's own KV has the key of its tokens after an empty one.
    """
    parts = [
        LAYOUT_VERSION,
        identity.model,
        identity.tokenizer,
        identity.dtype,
        identity.lora,
        identity.recipe,
        identity.salt,
        regime,
        [int(token) for token in system],
        [int(token) for token in tokens],
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


class ChunkStore:
    """A bounded map from chunk keys to KV. Safe to use from several threads.

    Args:
        capacity_bytes: KV kept at most; storing more evicts the least recently used.
    """

    def __init__(self, *, capacity_bytes: int = 1 << 30) -> None:
        if capacity_bytes < 1:
            raise ChunkCacheError(f"capacity_bytes must be at least 1, got {capacity_bytes}")
        self.capacity_bytes = capacity_bytes
        self.size_bytes = 0
        self.num_hits = 0
        self.num_misses = 0
        self._chunks: OrderedDict[str, ChunkKV] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._chunks)

    def __contains__(self, key: str) -> bool:
        return key in self._chunks

    def get(self, key: str) -> ChunkKV | None:
        """Return the KV and mark it as used; None where it is not stored. What is returned stays
        valid after an eviction, and must not be written to."""
        with self._lock:
            chunk = self._chunks.get(key)
            if chunk is None:
                self.num_misses += 1
                return None
            self.num_hits += 1
            self._chunks.move_to_end(key)
            return chunk

    def put(self, key: str, chunk: ChunkKV) -> bool:
        """Store KV, evicting as needed. False: it is larger than the whole store and was not kept.
        A key that is stored already keeps its KV."""
        with self._lock:
            if key in self._chunks:
                self._chunks.move_to_end(key)
                return True
            if chunk.size_bytes > self.capacity_bytes:
                return False
            while self.size_bytes + chunk.size_bytes > self.capacity_bytes:
                _, oldest = self._chunks.popitem(last=False)
                self.size_bytes -= oldest.size_bytes
            self._chunks[key] = chunk
            self.size_bytes += chunk.size_bytes
            return True

    def replace(self, key: str, chunk: ChunkKV) -> None:
        """Put other KV, or the same KV with more known about it, in the place of a stored chunk.
        Requests that hold the old one are not disturbed. A key that is not stored stays absent."""
        with self._lock:
            old = self._chunks.get(key)
            if old is not None and chunk.size_bytes <= old.size_bytes:
                self._chunks[key] = chunk
                self.size_bytes += chunk.size_bytes - old.size_bytes

    def discard(self, key: str) -> None:
        """Drop KV that is not wanted any more; a key that is not there does nothing."""
        with self._lock:
            chunk = self._chunks.pop(key, None)
            if chunk is not None:
                self.size_bytes -= chunk.size_bytes

    def prefetch(self, keys: Sequence[str]) -> None:
        """Nothing to do: everything is in memory."""

    def clear(self) -> None:
        """Drop everything."""
        with self._lock:
            self._chunks.clear()
            self.size_bytes = 0

    def close(self) -> None:
        """Nothing to do: nothing is kept."""

    def check_integrity(self) -> None:
        """Raise where the books do not add up.

        Raises:
            ChunkCacheError: with the numbers.
        """
        with self._lock:
            check_books(self._chunks.values(), self.size_bytes, capacity_bytes=self.capacity_bytes)


def check_books(chunks: Iterable[ChunkKV], size_bytes: int, *, capacity_bytes: int) -> None:
    """Raise where chunks do not have the size that was noted for them, or too much.

    Raises:
        ChunkCacheError: with the numbers.
    """
    total = sum(chunk.size_bytes for chunk in chunks)
    if total != size_bytes or total > capacity_bytes:
        raise ChunkCacheError(
            f"chunks hold {total} bytes, {size_bytes} are on the books, {capacity_bytes} are "
            "allowed"
        )
