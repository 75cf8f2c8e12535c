"""Prefill a prompt of system prompt, chunks and question from stored KV, computing the rest.

For every token the exact prefix is preferred to a stored chunk, and a stored chunk to computing.
Knows token ids, stored KV and policies. Does not know texts, tokenizers or HTTP. Chunks are
tokenised separately and joined by ids: tokenising the joined text would merge across their borders.
"""

import copy
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial

import torch
from transformers.cache_utils import DynamicCache

from ragboost.chunk_cache.core.chunks import Chunks
from ragboost.chunk_cache.core.prefill import Counts, Prefill, Timing
from ragboost.chunk_cache.core.snapkv import QuestionWindow, evict
from ragboost.chunk_cache.model.adapter import ModelAdapter
from ragboost.chunk_cache.model.assemble import Assembly, ChunkSpan, TokenSource, assemble
from ragboost.chunk_cache.model.attention import make_backend
from ragboost.chunk_cache.model.attention.backend import AttentionBackend
from ragboost.chunk_cache.model.pace import AT_ONCE, Pace
from ragboost.chunk_cache.model.plan import Observer, observe_both
from ragboost.chunk_cache.model.recompute import recompute
from ragboost.chunk_cache.model.request_cache import RequestCache
from ragboost.chunk_cache.selection import (
    DEFAULT_POLICY,
    DEFAULT_RATIO,
    MEASURED,
    POLICIES,
    make_policy,
)
from ragboost.chunk_cache.selection.policy import SelectionPolicy, choose
from ragboost.chunk_cache.selection.view import SelectionView
from ragboost.chunk_cache.store.chunk import ChunkKV
from ragboost.chunk_cache.store.contract import KVStore
from ragboost.chunk_cache.store.keys import Identity, tokens_digest
from ragboost.errors import ChunkCacheError, ChunkLostError

logger = logging.getLogger(__name__)


class ChunkReuse:
    """Chunk KV of one model, computed after a system prompt and reused at any position.

    Safe to use from several threads: a request writes only to its own cache.

    Args:
        adapter: the model.
        store: store of the chunk KV; several engines may share one.
        identity: everything besides the tokens that determines the KV; None: the adapter's weights
            and dtype.
        backend: name of the attention backend, see `attention.BACKENDS`; None: the model's own
            attention with a dense mask, bit-identical to an ordinary forward pass.
        recipes: recipes of prepared chunks, see `Chunks`.

    Attributes:
        chunks: the stored chunks.
        backend: the attention backend.
    """

    def __init__(
        self,
        adapter: ModelAdapter,
        store: KVStore,
        *,
        identity: Identity | None = None,
        backend: str | None = "tiled",
        recipes: Mapping[str, str] | None = None,
    ) -> None:
        self.adapter = adapter
        self.store = store
        self.identity = identity or Identity(
            model=adapter.fingerprint(), dtype=str(adapter.dtype).removeprefix("torch.")
        )
        self._recipes = recipes
        self.backend: AttentionBackend | None = make_backend(backend) if backend else None
        self.chunks = self._chunks_of(self.identity)

    def _chunks_of(self, identity: Identity) -> Chunks:
        return Chunks(
            self.adapter,
            self.store,
            identity=identity,
            backend=self.backend,
            recipes=self._recipes,
        )

    @property
    def policies(self) -> list[str]:
        """Names of the policies that can be used: those that need measurements only with prepared
        chunks, which have them."""
        return [name for name in POLICIES if self._recipes or name not in MEASURED]

    def for_tenant(self, salt: str | None) -> "ChunkReuse":
        """Return reuse of chunks that are shared only between requests with this salt; None:
        self."""
        if not salt:
            return self
        own = copy.copy(self)
        own.identity = replace(self.identity, salt=salt)
        own.chunks = self._chunks_of(own.identity)
        return own

    def precompute(self, system: Sequence[int], chunks: Sequence[Sequence[int]]) -> int:
        """Compute and store missing chunks, see `Chunks.precompute`."""
        return self.chunks.precompute(system, chunks)

    def prefill(
        self,
        system: Sequence[int],
        chunks: Sequence[Sequence[int]],
        question: Sequence[int],
        *,
        policy: SelectionPolicy | str = DEFAULT_POLICY,
        ratio: float = DEFAULT_RATIO,
        granularity: int = 1,
        prefix: ChunkKV | None = None,
        keep_tokens: int | None = None,
        stored: Sequence[ChunkKV | None] | None = None,
        observe: Observer | None = None,
        keep: bool = False,
    ) -> Prefill:
        """Fill the KV of a prompt and return the logits of its last token.

        Args:
            system, chunks, question: token ids; the question has at least one.
            policy: selects the reused tokens to recompute; an instance or a name.
            ratio: share of the approximate tokens to recompute, 0 to 1.
            granularity: block size of the selection in tokens; 1: single tokens.
            prefix: KV of an exact prefix of this prompt from the caller's prefix cache, never
                recomputed.
            keep_tokens: maximum tokens per layer and head of the returned cache, see
                `snapkv.evict`; None: all.
            stored: KV of each chunk, None to compute it; None: look all of them up.
            observe: observer of the pass that computes the prompt, see `ForwardPlan`.
            keep: store the chunks of this prompt that are not stored, see `Chunks.take`.

        Raises:
            ChunkCacheError: an empty question, a prefix with other tokens, or an invalid ratio.
        """
        attempt = partial(
            self._prefill,
            (system, chunks, question),
            prefix=prefix,
            policy=make_policy(policy) if isinstance(policy, str) else policy,
            ratio=ratio,
            granularity=granularity,
            keep_tokens=keep_tokens,
            observe=observe,
            keep=keep,
        )
        try:
            return attempt(stored=stored)
        except ChunkLostError:  # from KV that was still loading
            logger.warning("stored KV was lost while in use; the prompt is computed again")
            return attempt(stored=[None] * len(chunks))

    def _prefill(
        self,
        prompt: tuple[Sequence[int], Sequence[Sequence[int]], Sequence[int]],
        *,
        policy: SelectionPolicy,
        ratio: float,
        granularity: int,
        prefix: ChunkKV | None,
        keep_tokens: int | None,
        stored: Sequence[ChunkKV | None] | None,
        observe: Observer | None,
        keep: bool,
    ) -> Prefill:
        begin = time.perf_counter()
        system, _, question = prompt
        assembly = self.assemble(*prompt, prefix=prefix, stored=stored)
        assembled = time.perf_counter()
        selected = self.select(assembly, policy=policy, ratio=ratio, granularity=granularity)
        chosen = time.perf_counter()
        window = QuestionWindow(len(question)) if keep_tokens is not None else None
        logits = recompute(
            self.adapter,
            assembly,
            selected=selected,
            backend=self.backend,
            observe=observe_both(window, observe),
        )
        counts = Counts.of(assembly, selected)
        if keep:
            self.chunks.take(
                assembly.cache,
                assembly.tokens,
                num_system=len(system),
                spans=assembly.unstored,
                num_exact=counts.num_publishable,
            )
        cache: DynamicCache = assembly.cache
        if window is not None and keep_tokens is not None:
            documents = (len(system), assembly.question)
            cache = evict(assembly.cache, window, documents=documents, capacity=keep_tokens)
        done = time.perf_counter()
        return Prefill(
            **asdict(counts),
            cache=cache,
            logits=logits,
            selected=tuple(selected.tolist()),
            timing=Timing(assembled - begin, chosen - assembled, done - chosen),
        )

    def assemble(
        self,
        system: Sequence[int],
        chunks: Sequence[Sequence[int]],
        question: Sequence[int],
        *,
        prefix: ChunkKV | None = None,
        into: RequestCache | None = None,
        num_held: int = 0,
        stored: Sequence[ChunkKV | None] | None = None,
    ) -> Assembly:
        """Assemble the stored KV of a prompt.

        Args:
            system, chunks, question, prefix, stored: as for `prefill`.
            into: cache with a slot for each token to fill; None: a new one.
            num_held: leading slots of `into` that hold exact KV and are left unchanged.
        """
        if not question:
            raise ChunkCacheError("question must have at least one token")
        tokens = [*system, *(token for chunk in chunks for token in chunk), *question]
        regime = self.adapter.regime(len(tokens))
        covered = max(num_held, self._check_prefix(prefix, tokens, regime))
        spans = [ChunkSpan(0, covered, TokenSource.EXACT, prefix)] if covered else []
        if stored is None:
            stored = [
                self.chunks.find(system, chunk, is_first=number == 0)
                for number, chunk in enumerate(chunks)
            ]
        borders = []
        start = 0
        for number, (part, kv) in enumerate(
            zip([system, *chunks], [self.chunks.find((), system), *stored], strict=True)
        ):
            stop = start + len(part)
            if number > 0:
                borders.append((start, stop))
            if stop > covered:
                exact = is_exact(kv, tokens[:start])
                spans.append(_span(start, stop, covered, kv, is_exact=exact, regime=regime))
            start = stop
        source = torch.zeros(len(tokens), dtype=torch.int8)
        sensitivity = torch.zeros(len(tokens))
        for span in spans:
            source[span.start : span.stop] = span.source
            if span.kv is not None and span.kv.sensitivity is not None:
                sensitivity[span.start : span.stop] = span.kv.sensitivity
        device = self.adapter.device
        cache = assemble(self.adapter, spans, length=len(tokens), into=into, num_held=num_held)
        return Assembly(
            tokens,
            cache,
            source.to(device),
            borders,
            start,
            sensitivity.to(device),
            list(stored),
        )

    def select(
        self,
        assembly: Assembly,
        *,
        policy: SelectionPolicy,
        ratio: float,
        granularity: int = 1,
        pace: Pace = AT_ONCE,
    ) -> torch.Tensor:
        """Return the positions of the tokens to recompute, ascending."""
        candidates = assembly.candidates
        num_tokens = policy.num_tokens(assembly, ratio)
        if num_tokens in (0, len(candidates)):
            return candidates[:num_tokens]
        view = SelectionView(
            self.adapter, assembly, budget=num_tokens, backend=self.backend, pace=pace
        )
        scores = policy.score(view)
        return choose(assembly, scores, num_tokens=num_tokens, granularity=granularity)

    def _check_prefix(self, prefix: ChunkKV | None, tokens: list[int], regime: str) -> int:
        if prefix is None:
            return 0
        length = len(prefix.tokens)
        if prefix.base != 0 or list(prefix.tokens) != tokens[:length]:
            raise ChunkCacheError(
                f"the prefix of {length} tokens is not the beginning of the prompt"
            )
        # The last token is always computed, for its logits.
        return min(length, len(tokens) - 1) if prefix.regime == regime else 0


def is_exact(kv: ChunkKV | None, before: Sequence[int]) -> bool:
    """Return True if the KV equals that of an ordinary forward pass after these tokens."""
    if kv is None or kv.exact_after is None or kv.base != len(before):
        return False
    return kv.exact_after == tokens_digest(before)


def _span(
    start: int, stop: int, covered: int, kv: ChunkKV | None, *, is_exact: bool, regime: str
) -> ChunkSpan:
    """Return the part of a system prompt or chunk that the exact prefix does not cover."""
    first = max(start, covered)
    is_same_regime = kv is not None and kv.regime == regime
    if kv is None or (start == 0 and not is_same_regime):
        return ChunkSpan(first, stop, TokenSource.MISSING)
    source = TokenSource.EXACT if is_exact and is_same_regime else TokenSource.APPROXIMATE
    return ChunkSpan(first, stop, source, kv.without_first(first - start))
