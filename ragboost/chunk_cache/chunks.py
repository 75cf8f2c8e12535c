"""The chunks of one model: computed after a system prompt, stored, and found again by their ids.

Knows a model and a store. Does not know prompts: how chunks are put together is `reuse`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from ragboost.chunk_cache.assemble import Assembly, ChunkSpan, TokenSource, assemble
from ragboost.chunk_cache.kv.base import KVStore
from ragboost.chunk_cache.kv.store import ChunkKV, Identity, chunk_key, tokens_digest
from ragboost.chunk_cache.model.adapter import ModelAdapter
from ragboost.chunk_cache.model.attention.base import AttentionBackend
from ragboost.chunk_cache.pace import AT_ONCE, DeviceStopwatch, Pace
from ragboost.chunk_cache.recompute import recompute


class Chunks:
    """Stored chunks of one model.

    Args:
        adapter: the model.
        store: where KV is kept.
        identity: what KV depends on besides the tokens.
        backend: computes attention; None: the model's own.
        recipes: how chunks were prepared that are not kept as plain ones, by their plain key; what
            is prepared is preferred. Read at every look-up, so it may grow.
    """

    def __init__(
        self,
        adapter: ModelAdapter,
        store: KVStore,
        *,
        identity: Identity,
        backend: AttentionBackend | None,
        recipes: Mapping[str, str] | None = None,
    ) -> None:
        self.store = store
        self._recipes: Mapping[str, str] = {} if recipes is None else recipes
        self._adapter, self._identity, self._backend = adapter, identity, backend

    def key(self, system: Sequence[int], tokens: Sequence[int], *, recipe: str = "") -> str:
        """Return the key of a chunk after a system prompt; of the system prompt itself after an
        empty one.

        Args:
            system, tokens: ids.
            recipe: how the chunk was prepared; empty: plain.
        """
        regime = self._adapter.regime(len(system) + len(tokens))
        identity = replace(self._identity, recipe=recipe) if recipe else self._identity
        return chunk_key(identity, regime=regime, system=system, tokens=tokens)

    def keys(
        self, system: Sequence[int], tokens: Sequence[int], *, is_first: bool = False
    ) -> list[str]:
        """Return the keys under which a chunk may be stored, the preferred one first.

        Args:
            system, tokens: ids.
            is_first: whether the chunk stands right behind the system prompt, where plain KV is
                exact.
        """
        plain = self.key(system, tokens)
        recipe = self._recipes.get(plain)
        if recipe is None:
            return [plain]
        prepared = self.key(system, tokens, recipe=recipe)
        return [plain, prepared] if is_first else [prepared, plain]

    def find(
        self, system: Sequence[int], tokens: Sequence[int], *, is_first: bool = False
    ) -> ChunkKV | None:
        """Return a chunk's KV, exact before prepared before plain; see `keys`. None where it is not
        stored, or there are no tokens."""
        if not tokens:
            return None
        keys = self.keys(system, tokens, is_first=is_first)
        found = (self.store.get(key) for key in keys)
        return next((kv for kv in found if kv is not None), None)

    def plain(self, system: Sequence[int], tokens: Sequence[int]) -> ChunkKV:
        """Return a chunk's plain KV; computed and stored where it is not there."""
        stored = self.store.get(self.key(system, tokens))
        if stored is not None:
            return stored
        before = self.plain((), system) if system else None
        return self._compute(tuple(system), tuple(tokens), before=before, pace=AT_ONCE)

    def precompute(
        self, system: Sequence[int], chunks: Sequence[Sequence[int]], *, pace: Pace = AT_ONCE
    ) -> int:
        """Compute and store the KV of the system prompt and of each chunk after it (FusionRAG eq.
        5).

        Returns:
            How many chunks were computed; the others were stored already.
        """
        before = self._system(tuple(system), pace) if system else None
        distinct = [tokens for tokens in dict.fromkeys(map(tuple, chunks)) if tokens]
        missing = [tokens for tokens in distinct if self.find(system, tokens) is None]
        for tokens in missing:
            self._compute(tuple(system), tokens, before=before, pace=pace)
        return len(missing)

    def _system(self, system: tuple[int, ...], pace: Pace) -> ChunkKV:
        stored = self.find((), system)
        return stored or self._compute((), system, before=None, pace=pace)

    def _compute(
        self,
        system: tuple[int, ...],
        tokens: tuple[int, ...],
        *,
        before: ChunkKV | None,
        pace: Pace,
    ) -> ChunkKV:
        adapter = self._adapter
        base, length = len(system), len(system) + len(tokens)
        regime = adapter.regime(length)
        spans = []
        if base and before is not None and before.regime == regime:
            spans = [ChunkSpan(0, base, TokenSource.EXACT, before)]
        source = torch.zeros(length, dtype=torch.int8, device=adapter.device)
        source[: base if spans else 0] = TokenSource.EXACT
        cache = assemble(adapter, spans, length=length)
        assembly = Assembly([*system, *tokens], cache, source, [], length, torch.zeros(0))
        nothing = torch.zeros(0, dtype=torch.long, device=adapter.device)
        watch = DeviceStopwatch(pace)
        recompute(adapter, assembly, selected=nothing, backend=self._backend, pace=watch)
        layers = tuple(
            (layer.keys[:, :, base:].clone(), layer.values[:, :, base:].clone())
            for layer in cache.layers
        )
        if adapter.device.type == "cuda":
            torch.cuda.synchronize(adapter.device)
        kv = ChunkKV(
            tokens,
            base,
            layers,
            regime,
            length,
            exact_after=tokens_digest(system),
            compute_s=watch.seconds,
        )
        self.store.put(self.key(system, tokens), kv)
        return kv
