"""Plan the reuse of waiting requests, and account for those that end. Called by the radix cache, in
the scheduler's thread. Does not touch KV or the tree."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from ragboost.chunk_cache.core.fill import FilledPrompt, FillSteps
from ragboost.chunk_cache.core.fill_budget import StepBudget
from ragboost.chunk_cache.core.prompt_plan import PromptPlan, align_plan, unless_slower
from ragboost.chunk_cache.core.request import PARAMS_KEY, PromptReport
from ragboost.chunk_cache.core.reusing_request import ChunkCapture, ReusingRequest
from ragboost.chunk_cache.core.settings import EngineChunkSettings
from ragboost.chunk_cache.sglang.compat import request_refusal
from ragboost.chunk_cache.store.keys import keys_of
from ragboost.util.jsonl import json_value

if TYPE_CHECKING:
    from ragboost.chunk_cache.sglang.worker import PoolFiller

_MAX_ROWS = 1 << 62  # SGLang measures chunks of any length


@dataclass(slots=True, eq=False)
class PoolRequest(ReusingRequest):
    """A request that mentions chunks, in SGLang.

        match_prefix: a hit     init_load_back: slots are filled
    WAITING ----------------> PLANNED --------------------------> FILLED
       ^                        |  ^ needs several steps:           |
       |                        v  | `begun`, `steps`               |
       |                       PACED                                |
       +------------------------------------------------------------+  retracted
    FAILED: its options have the reason "failed", and SGLang computes it.
    """

    exact_stop: int | None = None  # tokens before the first page with approximate KV
    filled: FilledPrompt | None = None
    looked_up_at: float = 0.0  # last time; from then on SGLang computes the rest of the prompt
    hit: int = 0  # tokens that reuse fills behind the prefix
    hit_for: tuple[int, int] | None = None  # what `hit` was determined for
    begun: PromptPlan | None = None  # of a filling that takes several steps
    steps: FillSteps | None = None  # the rest of that filling


class PoolScheduler:
    def __init__(
        self,
        filler: "PoolFiller",
        *,
        settings: EngineChunkSettings,
        page_size: int,
        step_tokens: int,
    ) -> None:
        self._filler, self._page_size = filler, page_size
        self._defaults = settings.defaults
        self._budget = StepBudget(settings.step_tokens or step_tokens)
        self._step = -1
        self._paced: PoolRequest | None = None  # whose filling takes several steps
        self._has_advanced = False  # in this step
        self._captured = 0
        self._requests: WeakKeyDictionary[Any, PoolRequest] = WeakKeyDictionary()

    def __len__(self) -> int:
        return len(self._requests)

    def find(self, req: Any) -> PoolRequest | None:
        params = getattr(req.sampling_params, "custom_params", None)
        if not isinstance(params, Mapping) or PARAMS_KEY not in params:
            return None
        found = self._requests.get(req)
        if found is None:
            found = self._requests[req] = self._read(req, params[PARAMS_KEY])
        return found

    def hit(self, request: PoolRequest, *, prefix_tokens: int, limit: int) -> int:
        """Return the tokens, within `limit`, that reuse fills behind the tree's prefix."""
        request.prefix_tokens, request.looked_up_at = prefix_tokens, time.perf_counter()
        if request.begun is not None:
            if prefix_tokens < request.begun.stop <= limit:
                return request.begun.stop - prefix_tokens
            self.stop_filling(request)
        if request.options.reason is not None:
            return 0
        # Only stored chunks and the tree change the plan. The store's version would differ between
        # ranks, which must plan together.
        seen = (prefix_tokens, self._captured)
        if request.hit_for != seen:
            plan, filler = self.plan(request), self._filler
            plan = unless_slower(plan, filler.speed, num_layers=filler.model.num_layers)
            request.reason = plan if isinstance(plan, str) else None
            request.hit = 0 if isinstance(plan, str) else plan.stop - prefix_tokens
            request.hit_for = seen
        return request.hit if prefix_tokens + request.hit <= limit else 0

    def plan(self, request: PoolRequest) -> PromptPlan | str:
        if request.begun is not None:
            return request.begun
        library = self._filler.library
        plan = request.plan(library, prefix_tokens=request.prefix_tokens)
        if not isinstance(plan, str):
            plan = align_plan(plan, self._page_size)
        if not self._filler.model.ranks.same(_identity(plan)):
            # All ranks take them out of this request, alike.
            keys = [key for chunk in request.keys.values() for key in keys_of(chunk)]
            library.store.forget(keys)
            plan = "ranks_differ"
        request.reason = plan if isinstance(plan, str) else None
        return plan

    def rows(self, request: PoolRequest, plan: PromptPlan) -> int | None:
        """Return how many rows of a prompt may be computed before the next pass; None: all. One
        prompt at a time takes several steps: another that asks meanwhile has overtaken it."""
        is_paced = request is self._paced
        # Asked again, it is in another step, even if SGLang had nothing to compute meanwhile.
        if self._step != self._filler.num_passes or (is_paced and self._has_advanced):
            self._step, self._has_advanced = self._filler.num_passes, False
            self._budget.next_step()
        cost = plan.num_to_compute(self._filler.model.num_layers)
        if is_paced or (self._paced is None and self._budget.must_pace(cost)):
            rows = self._budget.rows_left(0)
            self._budget.admit(request.request_id, rows)
            self._has_advanced = True
            return rows
        return None if self._budget.admit(request.request_id, cost) else 0

    def pause(self, request: PoolRequest, plan: PromptPlan, steps: FillSteps) -> None:
        request.begun, request.steps = plan, steps
        self._paced = request

    def stop_filling(self, request: PoolRequest | None = None) -> None:
        """Forget a filling that takes several steps; None: the one there is."""
        request = request or self._paced
        if request is not None:
            request.begun = request.steps = None
        if request is self._paced:
            self._paced = None

    def abandon(self, request_id: str) -> None:
        if self._paced is not None and self._paced.request_id == request_id:
            self.stop_filling()

    def filled(self, request: PoolRequest, plan: PromptPlan, result: FilledPrompt) -> None:
        self.stop_filling(request)
        request.filled = result
        # 0        prefix_tokens     approximate            stop
        # | tree's | filled, exact   | filled, approximate  | computed
        # | ... exact_stop: whole pages, which the tree may take
        if plan.approximate is not None:
            exact = plan.approximate // self._page_size * self._page_size
            # The tree may have grown meanwhile.
            request.exact_stop = max(exact, request.prefix_tokens)
        request.keep_stored(plan)

    def failed(self, request: PoolRequest) -> None:
        self.stop_filling(request)
        request.options = replace(request.options, reason="failed")
        request.reason = "failed"

    def forget_fill(self, request: PoolRequest) -> None:
        self.stop_filling(request)
        request.exact_stop = request.filled = None
        request.hit_for = None

    def forget_chunks(self) -> None:
        """Compute all unfinished requests exactly, and take no chunks out of them."""
        self.stop_filling()
        for request in self._requests.values():
            request.forget_chunks()
            request.hit_for = None

    def captures(self, request: PoolRequest, num_computed: int) -> list[ChunkCapture]:
        """Return the chunks to take out of the pool once it holds the KV of the whole prompt."""
        if num_computed < len(request.tokens):
            return []
        self._captured += bool(request.uncaptured)  # the same on every rank, whatever it stores
        num_filled = 0 if request.filled is None else request.hit
        num_own = num_computed - request.prefix_tokens - num_filled
        is_sample = request.filled is None
        self._filler.note_pass(num_own, began=request.looked_up_at, is_sample=is_sample)
        self._filler.end_pass()
        return request.take_captures(
            self._filler.library,
            pass_start=num_computed - num_own,
            num_computed=num_computed,
            exact_stop=request.exact_stop,
        )

    def finish(self, req: Any) -> tuple[Any, PromptReport] | None:
        """Stop tracking a request; return where its report is sent to, and the report."""
        request = self._requests.pop(req, None)
        if request is None:
            return None
        self.stop_filling(request)
        if request.filled is not None:
            request.reason = None
        origins = None if request.filled is None else request.filled.counts
        return request.reply_to, request.report(origins, num_tokens=len(request.tokens))

    def _read(self, req: Any, entry: Any) -> PoolRequest:
        if isinstance(entry, str):  # SGLang takes no nested values
            entry = json_value(entry)
        return PoolRequest.read(
            req.rid,
            entry or (),
            req.origin_input_ids,
            refusal=request_refusal(req),
            namespace=[req.extra_key, req.cache_salt],
            library=self._filler.library,
            defaults=self._defaults,
            measurable_tokens=None if self._filler.model.ranks.size > 1 else _MAX_ROWS,
        )


def _identity(plan: PromptPlan | str) -> object:
    """Return what must be equal on all ranks of a model: a plan without its KV."""
    if isinstance(plan, str):
        return plan
    versions = [None if kv is None else (kv.base, kv.exact_after) for kv in plan.stored]
    return (plan.prefix_tokens, plan.stop, plan.approximate, versions)
