"""Decide what a prompt reuses: the stored chunks after the engine's own prefix hit.

Knows stored chunks, positions and options. Does not know models, blocks or engines.
"""

import hashlib
import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ragboost.chunk_cache.core.library import ChunkLibrary
from ragboost.chunk_cache.core.request import EngineChunkRequest
from ragboost.chunk_cache.core.reuse import is_exact
from ragboost.chunk_cache.core.token_origins import TokenOrigins
from ragboost.chunk_cache.selection import MEASURED, make_policy
from ragboost.chunk_cache.selection.policy import budget
from ragboost.chunk_cache.store.chunk import ChunkKV

MIN_CHUNK_TOKENS = 8
"""Shorter chunks cost more to keep than to compute."""
MAX_MISSING = 0.5
"""Greatest share of the filled tokens that may be missing: beyond it the engine's ordinary prefill,
which the scheduler paces, is the better way."""


@dataclass(frozen=True, slots=True)
class PromptPlan:
    """The reuse of chunks in one prompt.

    Attributes:
        request: the chunks and options of the request.
        tokens: token ids of the whole prompt.
        held: leading tokens whose KV the engine holds.
        stop: reuse fills the tokens [held, stop); the engine computes those after it.
        question: position of the first token after the last chunk, at most the last token.
        stored: the stored KV of each chunk of the request; None if it is missing.
        approximate: position of the first token whose KV differs from that of an ordinary prefill;
            None if there is none.
    """

    request: EngineChunkRequest
    tokens: list[int]
    held: int
    stop: int
    question: int
    stored: tuple[ChunkKV | None, ...]
    approximate: int | None

    @property
    def num_missing(self) -> int:
        """Tokens of [held, stop) without stored KV."""
        found = sum(
            max(0, min(stop, self.stop) - max(start, self.held))
            for (start, stop), kv in zip(self.request.chunks, self.stored, strict=True)
            if kv is not None
        )
        return self.stop - self.held - found

    @property
    def counts(self) -> TokenOrigins:
        """Expected report of a filling; without blocks of tokens, which are chosen as a whole."""
        exact, approximate = self.held, 0
        for (start, stop), kv in zip(self.request.chunks, self.stored, strict=True):
            if kv is None:
                continue
            count = stop - max(start, self.held)
            if is_exact(kv, self.tokens[:start]):
                exact += count
            else:
                approximate += count
        chosen = budget(make_policy(self.request.policy).ratio(self.request.ratio), approximate)
        computed = len(self.tokens) - exact - approximate
        return TokenOrigins(exact, approximate - chosen, chosen, computed)

    def num_to_compute(self, num_layers: int) -> int:
        """Return the tokens that filling computes, at most; partial passes count by their share of
        the model's layers."""
        if self.request.measure:
            start, stop = self.request.chunks[-1]
            return self.num_missing + stop - start
        chosen = self.request.ratio * (self.stop - self.held - self.num_missing)
        return self.num_missing + round(chosen) + self.num_looked_at(num_layers)

    def num_looked_at(self, num_layers: int) -> int:
        """Return what the selection computes, counted likewise."""
        if not self.request.ratio or not make_policy(self.request.policy).looks_at_all:
            return 0
        return round(min(2, num_layers) / num_layers * (len(self.tokens) - self.held))


def find_chunks(
    request: EngineChunkRequest, tokens: Sequence[int], library: ChunkLibrary
) -> dict[int, str]:
    """Return the keys of the chunks that are worth keeping, by their number."""
    return {
        number: library.key(tokens[start:stop], tenant=request.tenant)
        for number, (start, stop) in enumerate(request.chunks)
        if stop - start >= MIN_CHUNK_TOKENS
    }


def plan_prompt(
    request: EngineChunkRequest,
    tokens: list[int],
    *,
    held: int,
    keys: dict[int, str],
    library: ChunkLibrary,
) -> PromptPlan | str:
    """Return the plan of a prompt, or the reason to compute it exactly.

    Args:
        request: its chunks and options.
        tokens: its token ids.
        held: leading tokens whose KV the engine holds.
        keys: see `find_chunks`.
        library: the stored chunks.
    """
    stored: list[ChunkKV | None] = [None] * len(request.chunks)
    last = max((end for _, end in request.chunks), default=0)
    if last <= held:
        return "prefix_hit"
    stop = 0
    approximate = None
    is_unmeasured = is_last_exact = False
    for number, key in keys.items():
        start, end = request.chunks[number]
        if end <= held or end >= len(tokens):  # held already, or it has the last token
            continue
        kv = library.find(key, tokens[start:end])
        if kv is None:
            continue
        exact = is_exact(kv, tokens[:start])
        is_last_exact = exact or start < held
        if not exact and _lacks_measure(request, kv):
            is_unmeasured = True
            continue
        stored[number], stop = kv, end
        if approximate is None and not exact:
            approximate = max(start, held)
    if not stop:
        return "not_measured" if is_unmeasured else "nothing_stored"
    if request.measure and (len(stored) < 2 or stored[-1] is None or is_last_exact):
        return "not_measurable"
    question = min(last, len(tokens) - 1)
    plan = PromptPlan(request, tokens, held, stop, question, tuple(stored), approximate)
    if plan.num_missing > MAX_MISSING * (stop - held):
        return "mostly_missing"
    return plan


def align_plan(plan: PromptPlan, page_size: int) -> PromptPlan | str:
    """Return a plan that stops at the end of a page; the engine computes the tokens after it.

    A chunk that is measured stays whole: only its KV up to that page is for the engine.

    Args:
        plan: the plan, which begins at the end of a page.
        page_size: tokens per page.
    """
    stop = plan.stop // page_size * page_size
    if stop == plan.stop:
        return plan
    if stop <= plan.held:
        return "below_one_page"
    approximate = plan.approximate
    if approximate is not None and approximate >= stop:
        approximate = None
    if plan.request.measure:
        return replace(plan, stop=stop, approximate=approximate)
    chunks, stored = [], []
    for (start, end), kv in zip(plan.request.chunks, plan.stored, strict=True):
        is_cut = kv is not None and end > stop
        chunks.append((start, stop) if is_cut and start < stop else (start, end))
        if is_cut and kv is not None:
            kv = kv.only_first(stop - start) if start < stop else None
        stored.append(kv)
    return replace(
        plan,
        request=replace(plan.request, chunks=tuple(chunks)),
        stop=stop,
        stored=tuple(stored),
        approximate=approximate,
    )


def _lacks_measure(request: EngineChunkRequest, kv: ChunkKV) -> bool:
    """Return True if the policy cannot select tokens of this chunk, which is computed then."""
    is_needed = request.policy in MEASURED and not request.measure
    return is_needed and (kv.sensitivity is None or kv.influence is None)


def plan_digest(request: EngineChunkRequest, tokens: Sequence[int]) -> bytes:
    """Return the identity of approximate KV: the tenant, the options and the whole prompt, whose
    question decides what is recomputed."""
    made_from = [
        request.tenant,
        request.policy,
        request.ratio,
        request.granularity,
        request.chunks,
        list(tokens),
        secrets.token_hex(8) if request.measure else "",  # measured anew each time
    ]
    return hashlib.sha256(json.dumps(made_from).encode()).digest()
