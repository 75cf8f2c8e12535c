"""Decide what a prompt reuses: the stored chunks after the engine's own prefix hit.

Knows stored chunks, positions and options. Does not know models, blocks or engines.
"""

import hashlib
import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ragboost.chunk_cache.core.fill_budget import FillSpeed
from ragboost.chunk_cache.core.library import ChunkLibrary, is_exact
from ragboost.chunk_cache.core.request import MIN_CHUNK_TOKENS, EngineChunkRequest, TokenOrigins
from ragboost.chunk_cache.selection import MEASURED, make_policy
from ragboost.chunk_cache.selection.policy import budget
from ragboost.chunk_cache.selection.view import QUESTION_ROWS
from ragboost.chunk_cache.store.chunk import ChunkKV
from ragboost.chunk_cache.store.keys import PrefixDigests

MAX_MISSING = 0.5
"""Greatest share of the filled tokens that may be missing: beyond it the engine's ordinary prefill,
which the scheduler paces, is the better way. A policy that looks at all tokens computes some layers
of the missing ones twice."""


@dataclass(frozen=True, slots=True)
class PromptPlan:
    # 0       prefix_tokens         approximate                 stop      question     len(tokens)
    # |  engine's  |  exact chunks      |  reused and recomputed    |  the engine computes   |
    # |  prefix    |  copied, missing   |  chunks, missing tokens   |  as ever               |
    # |            |  and bought tokens |  computed                 |                        |
    # |            |  computed          |                           |                        |
    # |  exact KV                       |  approximate KV                                    |
    #
    # Bought are the chunks before `request.reuse_start`, which is at most `approximate`.

    request: EngineChunkRequest
    tokens: list[int]  # of the whole prompt
    prefix_tokens: int  # leading tokens whose KV the engine holds
    stop: int  # reuse fills the tokens [prefix_tokens, stop)
    question: int  # first token after the last chunk, at most the last token
    stored: tuple[ChunkKV | None, ...]  # of each chunk of the request; None if it is missing
    exact: tuple[bool, ...]  # of each chunk: its stored KV is that of an ordinary prefill here
    approximate: int | None  # first token whose KV differs from an ordinary prefill's; None: none

    @property
    def num_missing(self) -> int:
        return self._missing_from(self.prefix_tokens)

    @property
    def is_mostly_missing(self) -> bool:
        """True if stored KV is the smaller part of what may be reused."""
        start = self.request.reuse_start
        begin = min(max(self.prefix_tokens, start or 0), self.stop)
        return self._missing_from(begin) > MAX_MISSING * (self.stop - begin)

    def _missing_from(self, begin: int) -> int:
        found = sum(
            max(0, min(stop, self.stop) - max(start, begin))
            for (start, stop), kv in zip(self.request.chunks, self.stored, strict=True)
            if kv is not None
        )
        return self.stop - begin - found

    @property
    def counts(self) -> TokenOrigins:
        """Expected report of a filling, as if the selection took single tokens."""
        exact, approximate = self.prefix_tokens, 0
        for (start, stop), kv, is_copied in zip(
            self.request.chunks, self.stored, self.exact, strict=True
        ):
            count = 0 if kv is None else stop - max(start, self.prefix_tokens)
            exact += count if is_copied else 0
            approximate += 0 if is_copied else count
        chosen = budget(make_policy(self.request.policy).ratio(self.request.ratio), approximate)
        computed = len(self.tokens) - exact - approximate
        return TokenOrigins(exact, approximate - chosen, chosen, computed)

    def num_to_compute(self, num_layers: int) -> int:
        """Return the most tokens that filling computes; partial passes count by layers."""
        if self.request.measure:
            start, stop = self.request.chunks[-1]
            return self.num_missing + stop - start
        chosen = self.request.ratio * (self.stop - self.prefix_tokens - self.num_missing)
        policy, looked_at = make_policy(self.request.policy), 0
        if self.request.ratio and policy.looks_at_all:
            share = min(2, num_layers) / num_layers
            looked_at = round(share * (len(self.tokens) - self.prefix_tokens))
        if self.request.ratio and policy.reads_question:
            looked_at += min(QUESTION_ROWS, len(self.tokens) - self.question)
        return self.num_missing + round(chosen) + looked_at


def unless_slower(
    plan: PromptPlan | str, speed: FillSpeed | None, *, num_layers: int
) -> PromptPlan | str:
    """Return a plan, or "slower" if computing its prompt is expected to take less time; measuring a
    chunk is not done for the time."""
    if isinstance(plan, str) or speed is None or plan.request.measure:
        return plan
    rows, saved = plan.num_to_compute(num_layers), plan.stop - plan.prefix_tokens
    return plan if speed.is_faster(rows=rows, saved_tokens=saved) else "slower"


def find_chunks(
    request: EngineChunkRequest, tokens: Sequence[int], library: ChunkLibrary
) -> dict[int, str]:
    """Return the keys of the chunks that are worth keeping, by their number."""
    return {
        number: library.key(tokens[start:stop], tenant=request.tenant)
        for number, (start, stop) in enumerate(request.chunks)
        if stop - start >= MIN_CHUNK_TOKENS
    }


def find_loads(
    request: EngineChunkRequest, keys: dict[int, str], library: ChunkLibrary
) -> dict[str, int]:
    """Return the keys of the KV that a prompt with these chunks loads, with its tokens."""
    loads: dict[str, int] = {}
    for number, key in keys.items():
        start, stop = request.chunks[number]
        wanted = library.keys_to_load(key, request.place(number))
        loads |= dict.fromkeys(wanted, stop - start)
    return loads


def plan_prompt(
    request: EngineChunkRequest,
    tokens: list[int],
    *,
    prefix_tokens: int,
    keys: dict[int, str],
    library: ChunkLibrary,
) -> PromptPlan | str:
    """Return the plan of a prompt, or the reason to compute it exactly: the same as long as
    `prefix_tokens` and the store's `version` are."""
    if max((end for _, end in request.chunks), default=0) <= prefix_tokens:
        return "prefix_hit"
    stored: list[ChunkKV | None] = [None] * len(request.chunks)
    regime, prompt = library.regime_at(len(tokens)), PrefixDigests(tokens)
    is_unmeasured = False
    for number, key in keys.items():
        start, end = request.chunks[number]
        if end <= prefix_tokens or end >= len(tokens):  # in the prefix, or it has the last token
            continue
        for kv in library.find_all(key, tokens[start:end], request.place(number)):
            if is_exact(kv, prompt, start, regime=regime):
                stored[number] = kv
                break
            if number < request.exact_chunks:  # it is bought
                continue
            if not _lacks_measure(request, kv):
                stored[number] = kv
                break
            is_unmeasured = True
    plan = plan_stored(request, tokens, prefix_tokens=prefix_tokens, stored=stored, regime=regime)
    if plan.stop == prefix_tokens:
        if request.reuse_start is None:
            return "bought"
        return "not_measured" if is_unmeasured else "nothing_stored"
    if request.measure:
        is_behind = len(stored) > 1 and request.chunks[-1][0] >= prefix_tokens
        if not is_behind or stored[-1] is None or plan.exact[-1]:
            return "not_measurable"
    if plan.is_mostly_missing:
        return "mostly_missing"
    return plan


def plan_stored(
    request: EngineChunkRequest,
    tokens: list[int],
    *,
    prefix_tokens: int,
    stored: Sequence[ChunkKV | None],
    regime: str,
    is_whole: bool = False,
) -> PromptPlan:
    """Return the plan of a prompt with this KV of each chunk, worth it or not; `is_whole`: to the
    prompt's end, not that of the last stored chunk."""
    stop, approximate, prompt = prefix_tokens, None, PrefixDigests(tokens)
    found: list[ChunkKV | None] = []
    exact = []
    for (start, end), kv in zip(request.chunks, stored, strict=True):
        found.append(kv if end > prefix_tokens else None)
        exact.append(kv is not None and is_exact(kv, prompt, start, regime=regime))
        if found[-1] is None:
            continue
        stop = end
        if approximate is None and not exact[-1]:
            approximate = max(start, prefix_tokens)
    last = max((end for _, end in request.chunks), default=0)
    return PromptPlan(
        request,
        tokens,
        prefix_tokens,
        len(tokens) if is_whole else stop,
        min(last, len(tokens) - 1),
        tuple(found),
        tuple(exact),
        approximate,
    )


def align_plan(plan: PromptPlan, page_size: int) -> PromptPlan | str:
    """Return a plan that stops at the end of a page, where it begins too; the engine computes the
    rest. A chunk that is measured stays whole."""
    stop = plan.stop // page_size * page_size
    if stop == plan.stop:
        return plan
    if stop <= plan.prefix_tokens:
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
    return request.policy in MEASURED and not request.measure and kv.influence is None


def plan_digest(request: EngineChunkRequest, tokens: Sequence[int]) -> bytes:
    """Return the identity of approximate KV: the whole prompt, whose question decides what is
    recomputed, and the options."""
    made_from = [
        request.tenant,
        request.policy,
        request.ratio,
        request.granularity,
        request.chunks,
        request.exact_chunks,
        list(tokens),
        secrets.token_hex(8) if request.measure else "",  # measured anew each time
    ]
    return hashlib.sha256(json.dumps(made_from).encode()).digest()
