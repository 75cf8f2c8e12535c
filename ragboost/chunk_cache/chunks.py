"""The stored chunks of one model: computed after a system prompt, and looked up by their token ids.

Knows a model and a store. Does not know prompts: `reuse` assembles the chunks.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from ragboost.chunk_cache.assemble import Assembly, ChunkSpan, TokenSource, assemble, extract
from ragboost.chunk_cache.kv.base import KVStore
from ragboost.chunk_cache.kv.chunk import ChunkKV
from ragboost.chunk_cache.kv.keys import Identity, chunk_key
from ragboost.chunk_cache.model.adapter import ModelAdapter
from ragboost.chunk_cache.model.attention.base import AttentionBackend
from ragboost.chunk_cache.pace import AT_ONCE, DeviceStopwatch, Pace
from ragboost.chunk_cache.recompute import recompute


class Chunks:
    """Stored chunks of one model.

    Args:
        adapter: the model.
        store: store of the KV.
        identity: everything besides the tokens that determines the KV.
        backend: attention backend; None: the model's own attention.
        recipes: recipes of prepared chunks by their plain key; prepared KV is preferred. Read at
            every look-up, so it may grow.
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
        """Return the key of a chunk after a system prompt. The key of the system prompt itself is
        that of its tokens after an empty one.

        Args:
            system, tokens: token ids.
            recipe: preparation of the chunk; empty for plain KV.
        """
        regime = self._adapter.regime(len(system) + len(tokens))
        identity = replace(self._identity, recipe=recipe) if recipe else self._identity
        return chunk_key(identity, regime=regime, system=system, tokens=tokens)

    def keys(
        self, system: Sequence[int], tokens: Sequence[int], *, is_first: bool = False
    ) -> list[str]:
        """Return the keys that a chunk may be stored under, the preferred one first.

        Args:
            system, tokens: token ids.
            is_first: the chunk directly follows the system prompt, where plain KV is exact.
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
        """Return a chunk's KV under the first of its `keys` that is stored; None if there is none,
        or no tokens."""
        if not tokens:
            return None
        keys = self.keys(system, tokens, is_first=is_first)
        found = (self.store.get(key) for key in keys)
        return next((kv for kv in found if kv is not None), None)

    def plain(self, system: Sequence[int], tokens: Sequence[int]) -> ChunkKV:
        """Return a chunk's plain KV, computing and storing it if it is missing."""
        stored = self.store.get(self.key(system, tokens))
        if stored is not None:
            return stored
        before = self.plain((), system) if system else None
        return self._compute(tuple(system), tuple(tokens), before=before, pace=AT_ONCE)

    def precompute(
        self, system: Sequence[int], chunks: Sequence[Sequence[int]], *, pace: Pace = AT_ONCE
    ) -> int:
        """Compute and store the missing KV of the system prompt and of each chunk after it
        (FusionRAG eq. 5).

        Returns:
            The number of computed chunks.
        """
        before = None
        if system:
            before = self.find((), system)
            before = before or self._compute((), tuple(system), before=None, pace=pace)
        distinct = [tokens for tokens in dict.fromkeys(map(tuple, chunks)) if tokens]
        missing = [tokens for tokens in distinct if self.find(system, tokens) is None]
        for tokens in missing:
            self._compute(tuple(system), tokens, before=before, pace=pace)
        return len(missing)

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
        spans = []
        if base and before is not None and before.regime == adapter.regime(length):
            spans = [ChunkSpan(0, base, TokenSource.EXACT, before)]
        source = torch.zeros(length, dtype=torch.int8, device=adapter.device)
        source[: base if spans else 0] = TokenSource.EXACT
        cache = assemble(adapter, spans, length=length)
        prompt = [*system, *tokens]
        assembly = Assembly(prompt, cache, source, [], length, torch.zeros(0))
        nothing = torch.zeros(0, dtype=torch.long, device=adapter.device)
        stopwatch = DeviceStopwatch(pace)
        recompute(adapter, assembly, selected=nothing, backend=self._backend, pace=stopwatch)
        kv = extract(adapter, cache, prompt, start=base, stop=length, is_exact=True)
        if adapter.device.type == "cuda":
            torch.cuda.synchronize(adapter.device)
        kv = replace(kv, compute_s=stopwatch.seconds)
        self.store.put(self.key(system, tokens), kv)
        return kv
