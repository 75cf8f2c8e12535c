"""The stored chunks of one engine: keyed by their own tokens and a tenant, not by what preceded.

Keys that chain on the prefix would flood the store with copies of the same chunk.
"""

from collections.abc import Sequence
from dataclasses import replace

from ragboost.chunk_cache.core.measure import ChunkMeasure
from ragboost.chunk_cache.model.nested_model import NestedModel
from ragboost.chunk_cache.store.chunk import ChunkKV
from ragboost.chunk_cache.store.contract import KVStore
from ragboost.chunk_cache.store.keys import Identity, chunk_key


class ChunkLibrary:
    """Chunk KV of one model, by content.

    Args:
        store: store of the KV.
        identity: everything besides the tokens that determines the KV.
        regime: identity of the model's RoPE frequencies.
    """

    def __init__(self, store: KVStore, *, identity: Identity, regime: str) -> None:
        self.store = store
        self.regime = regime
        self._identity = identity

    @classmethod
    def of(cls, model: NestedModel, store: KVStore) -> "ChunkLibrary":
        """Return the chunks that a model has computed with its present weights."""
        dtype = str(model.dtype).removeprefix("torch.")
        identity = Identity(model=model.fingerprint(), dtype=dtype)
        return cls(store, identity=identity, regime=model.regime(1))

    def renewed(self, model: NestedModel) -> "ChunkLibrary":
        """Return the library of a model's present weights: this one if they are the same."""
        if model.fingerprint() == self._identity.model:
            return self
        return ChunkLibrary.of(model, self.store)

    def key(self, tokens: Sequence[int], *, tenant: str = "") -> str:
        """Return the key of a chunk."""
        identity = replace(self._identity, salt=tenant) if tenant else self._identity
        return chunk_key(identity, regime=self.regime, system=(), tokens=tokens)

    def find(self, key: str, tokens: Sequence[int]) -> ChunkKV | None:
        """Return stored KV; None if there is none that fits these tokens."""
        kv = self.store.get(key)
        if kv is None or kv.regime != self.regime or len(kv.tokens) != len(tokens):
            return None
        return kv

    def add(self, key: str, kv: ChunkKV, *, is_first: bool) -> bool:
        """Store a chunk. KV that was computed directly after the beginning of a prompt replaces KV
        that has seen other chunks.

        Args:
            key: the chunk's key.
            kv: its KV, exact for the prompt that it was computed in.
            is_first: no other chunk preceded it.
        """
        self.store.put(key, kv)
        if is_first:
            stored = self.store.get(key)
            if stored is not None and stored.base > kv.base:
                measured = replace(kv, sensitivity=stored.sensitivity, influence=stored.influence)
                self.store.replace(key, measured)
        return key in self

    def measure(self, key: str, measure: ChunkMeasure) -> None:
        """Add measurements to a stored chunk. Does nothing if it was evicted meanwhile."""
        kv = self.store.get(key)
        if kv is not None and len(kv.tokens) == len(measure.sensitivity):
            self.store.replace(key, measure.added_to(kv))

    def __contains__(self, key: str) -> bool:
        return key in self.store
