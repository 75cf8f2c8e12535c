"""The stored chunks of one model: keyed by their own tokens and a tenant, not by what preceded.

Keys that chain on the prefix would flood the store with copies of the same chunk. A chunk has at
most two: KV directly behind a prompt's beginning, which is exact there, and KV behind other chunks,
which answers better behind others (docs/lab/language.md).
"""

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from ragboost.chunk_cache.model.reusable_model import ReusableModel
from ragboost.chunk_cache.store.chunk import ChunkKV, Origin
from ragboost.chunk_cache.store.influence import Influence
from ragboost.chunk_cache.store.keys import (
    PUBLIC,
    Identity,
    Place,
    PrefixDigests,
    behind_key,
    chunk_key,
    keys_of,
)
from ragboost.chunk_cache.store.tiered import TieredStore

logger = logging.getLogger(__name__)


class ChunkLibrary:
    """Chunk KV of one model, by content. `model` checks what is found, unless it is elsewhere.
    `has_public`: all tenants find what `publish` stored."""

    def __init__(
        self,
        store: TieredStore,
        *,
        identity: Identity,
        regime: str,
        model: ReusableModel | None = None,
        has_public: bool = False,
    ) -> None:
        self.store = store
        self.regime = regime
        self.identity = identity
        self.has_public, self._is_public_full = has_public, False
        self._model = model
        self.num_fills, self.fill_seconds = 0, 0.0  # of prompts
        self.num_hits, self.misses = 0, Counter[str]()  # looked-up chunks; these by `absence`

    @classmethod
    def of(
        cls,
        model: ReusableModel,
        store: TieredStore,
        *,
        identity: Identity | None = None,
        has_public: bool = False,
    ) -> "ChunkLibrary":
        if identity is None:
            dtype = str(model.dtype).removeprefix("torch.")
            ranks = model.ranks
            rank = f"{ranks.rank}/{ranks.size}" if ranks.size > 1 else ""
            identity = Identity(model=model.fingerprint(), dtype=dtype, rank=rank)
        return cls(
            store,
            identity=identity,
            regime=model.regime(1),
            model=model,
            has_public=has_public,
        )

    def renewed(self, model: ReusableModel) -> "ChunkLibrary":
        if model.fingerprint() == self.identity.model:
            return self
        return ChunkLibrary.of(model, self.store, has_public=self.has_public)

    def __contains__(self, key: str) -> bool:
        return key in self.store

    def lacks(
        self, key: str, tokens: Sequence[int], *, base: int, is_exact: bool, is_first: bool
    ) -> bool:
        """Return True if KV of a computed prompt, from position `base` on, is worth storing under
        the key of its `slot`."""
        stored = self.store.origin(key)
        if stored is None:
            return is_first or self._public(tokens) is None
        return Origin(is_exact, base).is_better(stored, is_first=is_first)

    def publish(self, key: str) -> None:
        """Let all tenants find a chunk while it stays in memory. It is neither evicted nor loaded:
        what they find must not depend on what others ask for."""
        if not self.store.keep(key) and not self._is_public_full:
            self._is_public_full = True
            logger.warning("no room for more public chunks: half of the memory is theirs")

    def _public(self, tokens: Sequence[int]) -> str | None:
        key = self.key(tokens, tenant=PUBLIC) if self.has_public else ""
        return key if key and self.store.is_kept(key) else None

    def regime_at(self, length: int) -> str:
        return self.regime if self._model is None else self._model.regime(length)

    def key(self, tokens: Sequence[int], *, tenant: str = "") -> str:
        """Return the key of a chunk, which is that of its KV behind a prompt's beginning."""
        identity = replace(self.identity, salt=tenant) if tenant else self.identity
        return chunk_key(identity, regime=self.regime, tokens=tokens)

    def keys_to_load(self, key: str, place: Place = "behind") -> list[str]:
        """Return the key of the preferred KV of a chunk that is known to be stored; all, if none is
        or a remote store may have a better one."""
        keys = keys_of(key, place)
        known = [each for each in keys if each in self]
        is_settled = known and (known[0] == keys[0] or self.store.knows_all)
        return known[:1] if is_settled else keys

    def find(self, key: str, tokens: Sequence[int], place: Place = "behind") -> ChunkKV | None:
        return next(self.find_all(key, tokens, place), None)

    def find_all(
        self, key: str, tokens: Sequence[int], place: Place = "behind"
    ) -> Iterator[ChunkKV]:
        """Yield the stored KV of a chunk, the preferred first and public KV last. It counts as one
        look-up."""
        keys = keys_of(key, place)
        known, public = [each for each in keys if each in self], self._public(tokens)
        is_found = False
        for each in [*(known or keys), *([public] if public else [])]:
            if (kv := self._get(each, tokens)) is not None:
                self.num_hits += not is_found
                is_found = True
                yield kv
        if not is_found:
            self.misses[self.store.absence(keys)] += 1

    def find_beginning(self, tokens: Sequence[int], stop: int) -> ChunkKV | None:
        """Return stored KV that is exact for the tokens [0, stop) of a prompt."""
        if not stop:
            return None
        beginning = tokens[:stop]
        kv = self.find(self.key(beginning), beginning, "alone")
        is_usable = kv is not None and is_exact(
            kv, PrefixDigests([]), 0, regime=self.regime_at(len(tokens))
        )
        return kv if is_usable else None

    def slot(self, key: str, *, is_first: bool) -> str:
        """Return the key under which KV of a chunk is stored; `is_first`: no chunk precedes it."""
        return key if is_first else behind_key(key)

    def add(self, key: str, kv: ChunkKV, *, is_first: bool) -> bool:
        """Store KV under the key of its `slot`, unless what is there is as good."""
        origin = self.store.origin(key)
        if origin is None or not kv.origin.is_better(origin, is_first=is_first):
            self.store.put(key, kv)
            return key in self
        stored = self.store.get(key) if is_first else None
        if stored is not None and stored.influence is not None:
            kv = replace(kv, influence=stored.influence)
        self.store.replace(key, kv)
        return key in self

    def measure(self, key: str, influence: Influence, *, behind: ChunkKV | None = None) -> None:
        """Add measurements to a stored chunk, if it is there, and keep its KV `behind` the
        neighbours (FusionRAG eq. 10)."""
        kv = self.store.get(key)
        if kv is not None and len(kv.tokens) == len(influence.order):
            # Its own KV was computed without that context.
            own = replace(influence, context=(), inter=())
            self.store.replace(key, replace(kv, influence=own))
            if behind is not None:
                slot = behind_key(key)
                keep = self.store.replace if slot in self else self.store.put
                keep(slot, replace(behind, compute_s=kv.compute_s))

    def _get(self, key: str, tokens: Sequence[int]) -> ChunkKV | None:
        """Return the KV of a key; that of other tokens or another shape is removed."""
        kv = self.store.get(key)
        if kv is None or kv.regime != self.regime_at(kv.length):
            return None
        if len(kv.tokens) == len(tokens) and (self._model is None or self._fits(kv, tokens)):
            return kv
        logger.warning("removed the KV of chunk %s, which is not of this model", key)
        self.store.discard(key)
        return None

    def _fits(self, kv: ChunkKV, tokens: Sequence[int]) -> bool:
        assert self._model is not None, "checked against a model"
        shapes, count = self._model.kv_shapes, len(tokens)
        return (
            kv.tokens == tuple(tokens)
            and len(kv.layers) == len(shapes)
            and all(
                keys.dtype == values.dtype == self._model.dtype
                and keys.shape == (1, heads, count, key_dim)
                and values.shape == (1, heads, count, value_dim)
                for (keys, values), (heads, key_dim, value_dim) in zip(
                    kv.layers, shapes, strict=True
                )
            )
        )


def is_exact(kv: ChunkKV, prompt: PrefixDigests, start: int, *, regime: str) -> bool:
    """Return True if the KV, of tokens from `start` on, equals that of an ordinary prefill."""
    if kv.exact_after is None or kv.base != start or kv.regime != regime:
        return False
    return kv.exact_after == prompt.digest(start)
