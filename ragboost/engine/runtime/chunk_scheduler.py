"""Chunk reuse in the engine: select the prompt rows to compute, and store the chunks of computed
prompts.

Selection runs in pieces between the scheduler's steps. Knows requests and stored chunks. Does not
know how steps are planned. Belongs to the engine thread, except for `prefetch`.
"""

import logging
from dataclasses import dataclass

import torch

from ragboost.chunk_cache.core.prefill import Counts
from ragboost.chunk_cache.core.reuse import ChunkReuse
from ragboost.chunk_cache.core.snapkv import evict
from ragboost.chunk_cache.model.assemble import Assembly, TokenSource
from ragboost.chunk_cache.model.pace import Pace
from ragboost.chunk_cache.model.recompute import rows_to_compute
from ragboost.chunk_cache.model.request_cache import RequestCache
from ragboost.chunk_cache.selection import make_policy
from ragboost.engine.runtime.chunk_task import COMPUTE_ERRORS, RowSelector
from ragboost.engine.runtime.request import EngineRequest
from ragboost.errors import RagBoostError

logger = logging.getLogger(__name__)

MIN_REUSED_SHARE = 1 / 2
"""With fewer reused tokens per missing token the whole prompt is computed, and exact. A model of 14
layers breaks even there with the default policy; deeper ones a little earlier."""


@dataclass(frozen=True, slots=True)
class SelectedRows:
    """Rows of a prompt to compute over its stored chunks.

    Attributes:
        rows: positions, (rows,), ascending; the last token is among them.
        counts: where the tokens come from.
        new_chunks: positions (start, stop) of the chunks that were not stored.
    """

    rows: torch.Tensor
    counts: Counts
    new_chunks: list[tuple[int, int]]


@dataclass(slots=True)
class ReuseTotals:
    """Prompt tokens of requests with chunk reuse, chunks stored, and prompt tokens evicted before
    decoding, since the start."""

    exact: int = 0
    approximate: int = 0
    recomputed: int = 0
    computed: int = 0
    chunks_stored: int = 0
    evicted: int = 0


class ChunkScheduler(RowSelector[SelectedRows]):
    """Runs chunk reuse between the steps of one engine.

    Args:
        reuse: the model's chunks.

    Attributes:
        totals: counts since the start.
    """

    def __init__(self, reuse: ChunkReuse) -> None:
        super().__init__()
        self.reuse = reuse
        self.totals = ReuseTotals()

    def prefetch(self, request: EngineRequest) -> None:
        """Tell the store which chunks a waiting request will need; safe in any thread."""
        if (cut := request.prompt.cut) is not None:
            chunks = self._reuse_of(request).chunks
            keys = [chunks.key((), cut.system)] if cut.system else []
            for chunk in cut.chunks:
                keys += chunks.keys(cut.system, chunk)
            self.reuse.store.prefetch(keys)

    def take(self, request: EngineRequest) -> None:
        """Store the chunks of a computed prompt that were not stored. Does nothing if there are
        none, or if they were taken before."""
        spans, request.new_chunks = request.new_chunks, []
        if not spans:
            return
        assert request.prompt.cut is not None, "a prompt that is not cut at its chunks"
        end, exact_until = request.num_prompt_tokens, request.exact_until
        try:
            self.totals.chunks_stored += self._reuse_of(request).chunks.take(
                _prompt_cache(request),
                request.prompt.token_ids,
                num_system=len(request.prompt.cut.system),
                spans=spans,
                num_exact=end if exact_until is None else exact_until,
            )
        except COMPUTE_ERRORS as error:  # such as no memory for the copies
            logger.warning("the chunks of a prompt were not stored: %s", error)

    def shorten(self, request: EngineRequest) -> None:
        """Evict the prompt tokens that the question pays little attention to (SnapKV), once the
        prompt is computed, saved and taken. Does nothing if the request keeps all tokens."""
        window, request.window = request.window, None
        prompt, kv = request.prompt, request.kv
        if window is None or request.finish_reason is not None:
            return
        assert prompt.cut is not None, "a prompt that is not cut at its chunks"
        assert prompt.keep_tokens is not None, "a prompt that keeps all tokens"
        assert kv is not None, "a request without KV"
        length = request.num_prompt_tokens
        documents = (len(prompt.cut.system), length - len(prompt.cut.question))
        try:
            short = evict(
                _prompt_cache(request), window, documents=documents, capacity=prompt.keep_tokens
            )
            kv.shorten([(one.keys[0], one.values[0]) for one in short.layers], num_tokens=length)
        except COMPUTE_ERRORS as error:  # such as no memory for the copies
            logger.warning("a prompt was not shortened: %s", error)
            return
        if any(kv.evicted):
            # Slots have moved, and what is generated sees a part of the prompt only.
            request.exact_until = 0
            self.totals.evicted += max(kv.evicted)

    def _reuse_of(self, request: EngineRequest) -> ChunkReuse:
        options = request.prompt.reuse
        tenant = options.tenant if options is not None else ""
        salt = request.salt or ""
        # The length keeps a tenant and a salt from being taken for another pair.
        return self.reuse.for_tenant(f"{len(tenant)}:{tenant}{salt}" if tenant else salt)

    def close(self) -> None:
        """Cancel all work and close the chunk store."""
        super().close()
        self.reuse.store.close()

    def _select(self, request: EngineRequest, pace: Pace) -> SelectedRows:
        cut, options = request.prompt.cut, request.prompt.reuse
        assert cut is not None, "a prompt that is not cut at its chunks"
        assert options is not None, "a request without chunk reuse"
        with torch.inference_mode():
            assembly = self._reuse_of(request).assemble(
                cut.system,
                [part.tokens for part in cut.parts],
                cut.question,
                into=_prompt_cache(request),
                num_held=request.num_computed,
            )
            policy, ratio = make_policy(options.policy), options.ratio
            if policy.looks_at_all and ratio > 0 and not _pays_off(assembly):
                ratio = 1.0
            selected = self.reuse.select(assembly, policy=policy, ratio=ratio, pace=pace)
            chunks = {
                span for part, span in zip(cut.parts, assembly.chunks, strict=True) if part.is_chunk
            }
            new = [span for span in assembly.unstored if span in chunks]
            rows = rows_to_compute(assembly, selected)
            return SelectedRows(rows, Counts.of(assembly, selected), new)

    def _apply(self, request: EngineRequest, selected: SelectedRows) -> None:
        counts, totals = selected.counts, self.totals
        request.compute_rows(selected.rows, counts)
        totals.exact += counts.num_exact
        totals.approximate += counts.num_approximate
        totals.recomputed += counts.num_recomputed
        totals.computed += counts.num_computed
        request.new_chunks = selected.new_chunks

    def _refuse(self, request: EngineRequest, error: RagBoostError) -> None:
        logger.warning("computing a whole prompt instead of reusing chunks: %s", error)
        request.is_selecting = False


def _prompt_cache(request: EngineRequest) -> RequestCache:
    """Return the prompt's part of the request's KV, sharing its memory."""
    assert request.kv is not None, "a request without KV"
    end = request.num_prompt_tokens
    return RequestCache(
        [(keys[None, :, :end], values[None, :, :end]) for keys, values in request.kv.layers]
    )


def _pays_off(assembly: Assembly) -> bool:
    """Return whether selection can save more than it costs: a policy that looks at fresh layers
    computes the first ones for missing tokens too, and these are computed again afterwards."""
    num_missing = int((assembly.source == TokenSource.MISSING).sum())
    return len(assembly.candidates) >= MIN_REUSED_SHARE * num_missing
