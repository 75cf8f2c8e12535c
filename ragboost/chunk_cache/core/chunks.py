"""The stored chunks of one model: computed after a system prompt or taken from a computed prompt,
and looked up by their token ids.

Knows a model and a store. Does not know prompts: `reuse` assembles the chunks.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from ragboost.chunk_cache.model.adapter import ModelAdapter
from ragboost.chunk_cache.model.assemble import Assembly, ChunkSpan, TokenSource, assemble, extract
from ragboost.chunk_cache.model.attention.backend import AttentionBackend
from ragboost.chunk_cache.model.pace import AT_ONCE, DeviceStopwatch, Pace
from ragboost.chunk_cache.model.recompute import recompute
from ragboost.chunk_cache.model.request_cache import RequestCache
from ragboost.chunk_cache.store.chunk import ChunkKV
from ragboost.chunk_cache.store.contract import KVStore
from ragboost.chunk_cache.store.keys import Identity, chunk_key

logger = logging.getLogger(__name__)

REPLICA = "replica"
"""Recipe of KV that was taken from a prompt, behind whatever preceded the chunk there (FusionRAG
section 4.1). Two keys replace the paper's search through ever shorter prefixes: the whole chain
before a chunk, for which its KV is exact (`ChunkKV.exact_after`), and the chunk alone."""


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
        """Return the keys that a chunk may be stored under, the preferred one first: prepared,
        plain, taken from a prompt.

        Args:
            system, tokens: token ids.
            is_first: the chunk directly follows the system prompt, where plain KV is exact.
        """
        plain, replica = self.key(system, tokens), self.key(system, tokens, recipe=REPLICA)
        recipe = self._recipes.get(plain)
        if recipe is None:
            return [plain, replica]
        prepared = self.key(system, tokens, recipe=recipe)
        return [plain, prepared, replica] if is_first else [prepared, plain, replica]

    def find(
        self, system: Sequence[int], tokens: Sequence[int], *, is_first: bool = False
    ) -> ChunkKV | None:
        """Return a chunk's KV under the first of its `keys` that is stored; None if there is none,
        or no tokens. KV of other tokens, or of another shape than the model's, is removed."""
        if not tokens:
            return None
        own = tuple(tokens)
        for key in self.keys(system, tokens, is_first=is_first):
            kv = self.store.get(key)
            if kv is not None and self._is_of(kv, own):
                return kv
            if kv is not None:
                logger.warning("removed the KV of chunk %s, which is not of this model", key)
                self.store.discard(key)
        return None

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

    def take(
        self,
        cache: RequestCache,
        tokens: Sequence[int],
        *,
        num_system: int,
        spans: Sequence[tuple[int, int]],
        num_exact: int,
    ) -> int:
        """Store chunks of a computed prompt, and its system prompt, from copies of their KV.

        Args:
            cache: KV of the prompt, with slot and position equal.
            tokens: token ids of the prompt.
            num_system: leading tokens that are the system prompt.
            spans: positions (start, stop) of the chunks.
            num_exact: leading tokens whose KV is that of an ordinary forward pass.

        Returns:
            The number of stored chunks.
        """
        system = tuple(tokens[:num_system])
        regime = self._adapter.regime(len(tokens))
        is_usable = num_system <= num_exact and self._adapter.regime(num_system) == regime
        if system and is_usable and self.find((), system) is None:
            self._take(cache, tokens, (0, num_system), self.key((), system), is_exact=True)
        num_stored = 0
        for start, stop in spans:
            own = tuple(tokens[start:stop])
            is_exact = stop <= num_exact
            # Directly after the system prompt it is the plain KV.
            is_plain = is_exact and start == num_system and self._adapter.regime(stop) == regime
            key = self.key(system, own, recipe="" if is_plain else REPLICA)
            num_stored += self._take(cache, tokens, (start, stop), key, is_exact=is_exact)
        return num_stored

    def _is_of(self, kv: ChunkKV, tokens: tuple[int, ...]) -> bool:
        shapes = self._adapter.kv_shapes
        if kv.tokens != tokens or len(kv.layers) != len(shapes):
            return False
        if not isinstance(kv.layers, tuple):  # still loading
            return True
        return all(
            keys.dtype == values.dtype == self._adapter.dtype
            and keys.shape == (1, heads, len(tokens), key_dim)
            and values.shape == (1, heads, len(tokens), value_dim)
            for (keys, values), (heads, key_dim, value_dim) in zip(kv.layers, shapes, strict=True)
        )

    def _take(
        self,
        cache: RequestCache,
        tokens: Sequence[int],
        span: tuple[int, int],
        key: str,
        *,
        is_exact: bool,
    ) -> bool:
        start, stop = span
        kv = extract(self._adapter, cache, tokens, start=start, stop=stop, is_exact=is_exact)
        return self.store.put(key, kv)

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
