"""Chunk reuse with one model in this process, in prompts of system prompt, chunks and question.
Knows token ids. Does not know texts: chunks are tokenised separately and joined by ids."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from transformers.cache_utils import DynamicCache

from ragboost.chunk_cache.core.fill import assemble_plan, fill_steps
from ragboost.chunk_cache.core.library import ChunkLibrary, is_exact
from ragboost.chunk_cache.core.prompt_plan import PromptPlan, plan_stored
from ragboost.chunk_cache.core.request import EngineChunkRequest, TokenOrigins
from ragboost.chunk_cache.core.reusing_request import ChunkCapture
from ragboost.chunk_cache.model.adapter import ModelAdapter
from ragboost.chunk_cache.model.assemble import Assembly, extract
from ragboost.chunk_cache.model.attention.backend import AttentionBackend
from ragboost.chunk_cache.model.attention.tiled import TiledAttention
from ragboost.chunk_cache.model.pace import at_once
from ragboost.chunk_cache.model.plan import Observer
from ragboost.chunk_cache.selection import DEFAULT_POLICY, DEFAULT_RATIO, make_policy
from ragboost.chunk_cache.selection.policy import SelectionPolicy
from ragboost.chunk_cache.store.chunk import ChunkKV
from ragboost.chunk_cache.store.keys import Identity, PrefixDigests, place_of
from ragboost.chunk_cache.store.tiered import TieredStore
from ragboost.errors import ChunkCacheError

_TILED = TiledAttention()


@dataclass(frozen=True, slots=True)
class Prefill:
    cache: DynamicCache  # owned by the request; decode from position `num_tokens` on
    logits: torch.Tensor  # of the last token, (vocabulary,)
    selected: tuple[int, ...]  # positions of the recomputed tokens, ascending
    counts: TokenOrigins
    num_publishable: int  # leading tokens with exact KV, which may enter an exact prefix cache
    seconds: float  # from the look-up on

    @property
    def num_tokens(self) -> int:
        return sum(self.counts)


class ChunkReuse:
    """Chunk KV of one model, computed after a system prompt and reused at any position, by several
    threads and engines. Without a `backend` the model's own attention with a dense mask is
    bit-identical to an ordinary pass."""

    def __init__(
        self,
        adapter: ModelAdapter,
        store: TieredStore,
        *,
        identity: Identity | None = None,
        backend: AttentionBackend | None = _TILED,
    ) -> None:
        self.adapter, self.store = adapter, store
        self.library = ChunkLibrary.of(adapter, store, identity=identity)
        self.backend = backend

    def precompute(self, system: Sequence[int], chunks: Sequence[Sequence[int]]) -> int:
        """Store the missing KV of the system prompt and of each chunk after it (FusionRAG eq. 5);
        return how many chunks were computed."""
        self._store_system(system)
        distinct = [tokens for tokens in dict.fromkeys(map(tuple, chunks)) if tokens]
        missing = [
            t for t in distinct if self.library.find(self.library.key(t), t, "alone") is None
        ]
        for tokens in missing:
            self._store(tokens, self.compute(system, tokens))
        return len(missing)

    def plain(self, system: Sequence[int], tokens: Sequence[int]) -> ChunkKV:
        """Return a chunk's KV behind the system prompt; if it is missing, compute and store it."""
        self._store_system(system)
        prompt, start = [*system, *tokens], len(system)
        kv = self.library.find(self.library.key(tokens), tokens, "alone")
        regime = self.adapter.regime(len(prompt))
        if kv is None or not is_exact(kv, PrefixDigests(prompt), start, regime=regime):
            kv = self.compute(system, tokens)
            self._store(tokens, kv)
        return kv

    def compute(self, system: Sequence[int], tokens: Sequence[int]) -> ChunkKV:
        begin, prompt = time.perf_counter(), [*system, *tokens]
        before = self.library.find_beginning(prompt, len(system))
        plan = self._plan(prompt, [], [], prefix_tokens=len(system) if before else 0)
        filled = at_once(fill_steps(self.adapter, plan, prefix=before, backend=self.backend))
        kv = self.extract(filled.cache, prompt, len(system), len(prompt), is_exact=True)
        if self.adapter.device.type == "cuda":
            torch.cuda.synchronize(self.adapter.device)
        return replace(kv, compute_s=time.perf_counter() - begin)

    def prime(
        self, system: Sequence[int], chunk: Sequence[int], *, neighbours: Sequence[Sequence[int]]
    ) -> ChunkKV:
        """Return a chunk's KV behind the system prompt and the plain KV of its neighbours, the most
        similar last, which do not see each other (FusionRAG eq. 10), with their `influence`. It is
        not stored; missing plain KV is."""
        own = self.plain(system, chunk)
        stored = [self.plain(system, tokens) for tokens in neighbours if tokens]
        if not stored:
            return own
        stored.append(own)
        tokens, chunks = _join(system, [kv.tokens for kv in stored])
        before = self.library.find_beginning(tokens, len(system))
        plan = self._plan(tokens, chunks, stored, prefix_tokens=len(system) if before else 0)
        plan = replace(plan, request=replace(plan.request, measure=True))
        filled = at_once(fill_steps(self.adapter, plan, prefix=before, backend=self.backend))
        start, stop = chunks[-1]
        is_exact = plan.approximate is None or plan.approximate >= start
        kv = self.extract(filled.cache, tokens, start, stop, is_exact=is_exact)
        return replace(kv, influence=filled.influence)

    def measure(
        self, system: Sequence[int], chunk: Sequence[int], *, neighbours: Sequence[Sequence[int]]
    ) -> None:
        """Add the influence of neighbours to a chunk's stored plain KV."""
        influence = self.prime(system, chunk, neighbours=neighbours).influence
        if influence is not None:
            self.library.measure(self.library.key(chunk), influence)

    def prefill(
        self,
        system: Sequence[int],
        chunks: Sequence[Sequence[int]],
        question: Sequence[int],
        *,
        policy: SelectionPolicy | str = DEFAULT_POLICY,
        ratio: float = DEFAULT_RATIO,
        granularity: int = 1,
        stored: Sequence[ChunkKV | None] | None = None,
        observe: Observer | None = None,
    ) -> Prefill:
        """Fill the KV of a prompt: for every token a stored chunk before computing. Raises
        `ChunkCacheError`.

        `granularity`: block size of the selection. `stored`: KV of each chunk, None to compute it.
        `observe`: of the pass that computes the prompt."""
        begin = time.perf_counter()
        plan, prefix = self._plan_prompt(system, chunks, question, stored=stored)
        options = replace(plan.request, ratio=ratio, granularity=granularity)
        steps = fill_steps(
            self.adapter,
            replace(plan, request=options),
            prefix=prefix,
            backend=self.backend,
            policy=make_policy(policy) if isinstance(policy, str) else policy,
            observe=observe,
        )
        filled = at_once(steps)
        publishable = (plan.approximate or 0) if filled.counts.reused else len(plan.tokens)
        if filled.logits is None:
            raise AssertionError("nothing was computed, or the observer stopped the final pass")
        seconds = time.perf_counter() - begin
        return Prefill(
            filled.cache, filled.logits, filled.selected, filled.counts, publishable, seconds
        )

    def take(
        self, cache: DynamicCache, tokens: Sequence[int], chunks: Sequence[ChunkCapture]
    ) -> int:
        """Store copies of chunks of a computed prompt; return how many."""
        num_stored = 0
        for chunk in chunks:
            stop = len(chunk.tokens)
            kv = self.extract(cache, tokens, chunk.start, stop, is_exact=chunk.is_exact)
            num_stored += self.library.add(chunk.key, kv, is_first=chunk.is_first)
        return num_stored

    def assemble(
        self,
        system: Sequence[int],
        chunks: Sequence[Sequence[int]],
        question: Sequence[int],
        *,
        stored: Sequence[ChunkKV | None] | None = None,
    ) -> Assembly:
        plan, prefix = self._plan_prompt(system, chunks, question, stored=stored)
        return assemble_plan(self.adapter, plan, prefix=prefix)

    def extract(
        self, cache: DynamicCache, tokens: Sequence[int], start: int, stop: int, *, is_exact: bool
    ) -> ChunkKV:
        return extract(self.adapter, cache, tokens, start=start, stop=stop, is_exact=is_exact)

    def _plan_prompt(
        self,
        system: Sequence[int],
        chunks: Sequence[Sequence[int]],
        question: Sequence[int],
        *,
        stored: Sequence[ChunkKV | None] | None,
    ) -> tuple[PromptPlan, ChunkKV | None]:
        """Return the plan, and the KV of its first `prefix_tokens` tokens."""
        if not question:
            raise ChunkCacheError("question must have at least one token")
        tokens, spans = _join(system, chunks)
        tokens += question
        if stored is None:
            stored = [
                self.library.find(self.library.key(each), each, place_of(number)) if each else None
                for number, each in enumerate(chunks)
            ]
        before = self.library.find_beginning(tokens, len(system))
        prefix_tokens = len(system) if before is not None else 0
        return self._plan(tokens, spans, stored, prefix_tokens=prefix_tokens), before

    def _plan(
        self,
        tokens: list[int],
        chunks: Sequence[tuple[int, int]],
        stored: Sequence[ChunkKV | None],
        *,
        prefix_tokens: int,
    ) -> PromptPlan:
        return plan_stored(
            EngineChunkRequest(tuple(chunks)),
            tokens,
            prefix_tokens=prefix_tokens,
            stored=stored,
            regime=self.adapter.regime(len(tokens)),
            is_whole=True,
        )

    def _store_system(self, system: Sequence[int]) -> None:
        if system and self.library.find_beginning(system, len(system)) is None:
            self._store(system, self.compute((), system))

    def _store(self, tokens: Sequence[int], kv: ChunkKV) -> None:
        self.library.add(self.library.key(tokens), kv, is_first=True)


def _join(
    system: Sequence[int], chunks: Sequence[Sequence[int]]
) -> tuple[list[int], list[tuple[int, int]]]:
    tokens, spans = list(system), []
    for chunk in chunks:
        spans.append((len(tokens), len(tokens) + len(chunk)))
        tokens += chunk
    return tokens, spans
