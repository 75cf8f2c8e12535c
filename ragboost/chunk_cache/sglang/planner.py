"""Plan the reuse of waiting requests, and account for those that end.

Called by the radix cache, in the scheduler's thread. Knows requests and positions. Does not touch
KV or the tree.
"""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

from ragboost.chunk_cache.core.fill import FilledPrompt, FillSteps
from ragboost.chunk_cache.core.prompt_plan import PromptPlan, align_plan, find_chunks, plan_prompt
from ragboost.chunk_cache.core.request import (
    PARAMS_KEY,
    EngineChunkRequest,
    in_namespace,
    read_request,
)
from ragboost.chunk_cache.core.settings import EngineChunkSettings
from ragboost.chunk_cache.core.step_budget import StepBudget
from ragboost.chunk_cache.sglang.requests import request_refusal

if TYPE_CHECKING:
    from ragboost.chunk_cache.sglang.filler import SlotFiller


class ChunkToCapture(NamedTuple):
    """A chunk that a request has computed.

    Attributes:
        key: the chunk's key.
        start, stop: its position in the prompt.
        is_exact: the KV equals that of an ordinary prefill.
        is_first: no other chunk precedes it.
    """

    key: str
    start: int
    stop: int
    is_exact: bool
    is_first: bool


@dataclass(slots=True, eq=False)
class ReusingRequest:
    """One unfinished request that mentions chunks.

    Attributes:
        number: SGLang's id of the request.
        wanted: its chunks and options.
        tokens: token ids of its prompt.
        keys: keys of the chunks worth keeping, by number.
        reply_to: where its report is sent to.
        reason: why it is computed exactly; None if it reuses chunks.
        held: leading tokens whose KV the tree held at the last look.
        exact_stop: tokens before the first page with approximate KV; None if there is none.
        filled: how it was filled; None if it was not.
        uncaptured: numbers of the chunks that may still be taken out of the pool.
        hit: tokens that reuse fills after the `held` ones.
        hit_for: what `hit` was determined for.
        begun: the plan of a filling that takes several steps; None if there is none.
        steps: the rest of that filling.
    """

    number: str
    wanted: EngineChunkRequest
    tokens: list[int]
    keys: dict[int, str]
    reply_to: Any
    reason: str | None
    held: int = 0
    exact_stop: int | None = None
    filled: FilledPrompt | None = None
    uncaptured: set[int] = field(default_factory=set)
    hit: int = 0
    hit_for: tuple[int, int] | None = None
    begun: PromptPlan | None = None
    steps: FillSteps | None = None


class ReusePlanner:
    """Chunk reuse in SGLang's scheduler.

    Args:
        filler: the KV pool's side.
        settings: our own.
        page_size: tokens per page of the pool.
        step_tokens: tokens that a step of the scheduler computes.

    Attributes:
        reasons: number of requests computed exactly, by reason.
    """

    def __init__(
        self,
        filler: "SlotFiller",
        *,
        settings: EngineChunkSettings,
        page_size: int,
        step_tokens: int,
    ) -> None:
        self.reasons: Counter[str] = Counter()
        self._filler, self._page_size = filler, page_size
        self._defaults = settings.defaults
        self._budget = StepBudget(settings.step_tokens or step_tokens)
        self._step = -1
        self._paced: ReusingRequest | None = None  # whose filling takes several steps
        self._has_advanced = False  # in this step
        self._captured = 0
        self._requests: WeakKeyDictionary[Any, ReusingRequest] = WeakKeyDictionary()

    def __len__(self) -> int:
        return len(self._requests)

    def find(self, req: Any) -> ReusingRequest | None:
        """Return a request that mentions chunks; None for any other."""
        params = getattr(req.sampling_params, "custom_params", None)
        if not isinstance(params, Mapping) or PARAMS_KEY not in params:
            return None
        found = self._requests.get(req)
        if found is None:
            found = self._read(req, params[PARAMS_KEY])
            self._requests[req] = found
        return found

    def hit(self, request: ReusingRequest, *, held: int, limit: int) -> int:
        """Return the number of tokens that reuse fills after the `held` ones.

        Args:
            request: the request.
            held: leading tokens whose KV the tree holds.
            limit: leading tokens that SGLang does not need to compute.
        """
        request.held = held
        if request.begun is not None:
            if held < request.begun.stop <= limit:
                return request.begun.stop - held
            self.stop_filling(request)
        if request.wanted.reason is not None:
            return 0
        seen = (held, self._captured)
        if request.hit_for != seen:  # only stored chunks and the tree change the plan
            plan = self.plan(request)
            request.hit = 0 if isinstance(plan, str) else plan.stop - held
            request.hit_for = seen
        return request.hit if held + request.hit <= limit else 0

    def plan(self, request: ReusingRequest) -> PromptPlan | str:
        """Return the plan of a request, or the reason to compute it exactly."""
        if request.begun is not None:
            return request.begun
        plan = plan_prompt(
            request.wanted,
            request.tokens,
            held=request.held,
            keys=request.keys,
            library=self._filler.library,
        )
        if not isinstance(plan, str):
            plan = align_plan(plan, self._page_size)
        if not self._filler.model.ranks.same(_identity(plan)):
            for key in request.keys.values():  # all ranks take them out of this request, alike
                self._filler.library.store.discard(key)
            plan = "ranks_differ"
        request.reason = plan if isinstance(plan, str) else None
        return plan

    def rows(self, request: ReusingRequest, plan: PromptPlan) -> int | None:
        """Return how many rows of a prompt may be computed before the next forward pass; None: all.

        One prompt at a time is filled over several steps. SGLang keeps the order of its queue, so
        that another one which asks meanwhile has overtaken it: it is filled at once.
        """
        is_paced = request is self._paced
        # Asked again, it is in another step, even if SGLang had nothing to compute meanwhile.
        if self._step != self._filler.num_passes or (is_paced and self._has_advanced):
            self._step, self._has_advanced = self._filler.num_passes, False
            self._budget.next_step()
        cost = plan.num_to_compute(self._filler.model.num_layers)
        if is_paced or (self._paced is None and self._budget.must_pace(cost)):
            rows = self._budget.rows_left(0)
            self._budget.admit(request.number, rows)
            self._has_advanced = True
            return rows
        return None if self._budget.admit(request.number, cost) else 0

    def pause(self, request: ReusingRequest, plan: PromptPlan, steps: FillSteps) -> None:
        """Keep the rest of a filling for the next step."""
        request.begun, request.steps = plan, steps
        self._paced = request

    def stop_filling(self, request: ReusingRequest | None = None) -> None:
        """Forget a filling that takes several steps; None: the one there is."""
        request = request or self._paced
        if request is not None:
            request.begun = request.steps = None
        if request is self._paced:
            self._paced = None

    def abandon(self, number: str) -> None:
        """Forget the filling of a request that was aborted while it waited."""
        if self._paced is not None and self._paced.number == number:
            self.stop_filling()

    def filled(self, request: ReusingRequest, plan: PromptPlan, result: FilledPrompt) -> None:
        """Note that a prompt was filled."""
        self.stop_filling(request)
        request.filled = result
        if plan.approximate is not None:
            exact = plan.approximate // self._page_size * self._page_size
            request.exact_stop = max(exact, request.held)  # the tree may have grown meanwhile
        # What was stored is not taken out again: it would be approximate.
        found = [number for number, kv in enumerate(plan.stored) if kv is not None]
        request.uncaptured.difference_update(found)

    def failed(self, request: ReusingRequest) -> None:
        """Compute a request exactly from now on."""
        self.stop_filling(request)
        request.wanted = replace(request.wanted, reason="failed")
        request.reason = "failed"

    def forget_fill(self, request: ReusingRequest) -> None:
        """Note that a request has lost its KV."""
        self.stop_filling(request)
        request.exact_stop = request.filled = None
        request.hit_for = None

    def forget_chunks(self) -> None:
        """Compute all unfinished requests exactly, and take no chunks out of them."""
        self.stop_filling()
        for request in self._requests.values():
            request.keys, request.hit_for = {}, None
            request.uncaptured.clear()

    def captures(self, request: ReusingRequest, num_computed: int) -> list[ChunkToCapture]:
        """Return the chunks to take out of the pool, once.

        Args:
            request: the request.
            num_computed: leading tokens whose KV is in the pool.
        """
        if num_computed < len(request.tokens):
            return []
        found = []
        for number in sorted(request.uncaptured):
            (start, stop), key = request.wanted.chunks[number], request.keys[number]
            is_first = number == 0
            if is_first or key not in self._filler.library:
                is_exact = request.exact_stop is None or stop <= request.exact_stop
                found.append(ChunkToCapture(key, start, stop, is_exact, is_first))
        self._captured += bool(request.uncaptured)  # the same on every rank, whatever it stores
        request.uncaptured.clear()
        return found

    def finish(self, req: Any) -> tuple[Any, dict[str, Any]] | None:
        """Stop tracking a request; return where its report is sent to, and the report."""
        request = self._requests.pop(req, None)
        if request is None:
            return None
        self.stop_filling(request)
        length = len(request.tokens)
        held = min(request.held, length)  # after a retraction it may cover generated tokens
        told: dict[str, Any] = {
            "exact": held,
            "reused": 0,
            "recomputed": 0,
            "computed": length - held,
        }
        if (filled := request.filled) is not None:
            told = filled.counts._asdict()
        elif request.reason is not None:
            told["reason"] = request.reason
            self.reasons[request.reason] += 1
        return request.reply_to, told

    def _read(self, req: Any, told: Any) -> ReusingRequest:
        if isinstance(told, str):
            try:
                told = json.loads(told)
            except (ValueError, RecursionError):
                told = None
        tokens = list(req.origin_input_ids)
        wanted = read_request(
            {PARAMS_KEY: told or ()}, num_tokens=len(tokens), defaults=self._defaults
        )
        assert wanted is not None, "the entry is there"
        if wanted.measure and self._filler.model.ranks.size > 1:
            wanted = replace(wanted, reason="several_workers")
        refused = request_refusal(req)
        if refused is not None:
            wanted = replace(wanted, reason=refused, chunks=())
        wanted = in_namespace(wanted, req.extra_key, req.cache_salt)
        keys = find_chunks(wanted, tokens, self._filler.library)
        if wanted.reason is None:
            self._filler.library.store.prefetch(list(keys.values()))
        return ReusingRequest(
            req.rid,
            wanted,
            tokens,
            keys,
            told.get("reply_to") if isinstance(told, dict) else None,
            wanted.reason,
            uncaptured=set(keys),
        )


def _identity(plan: PromptPlan | str) -> object:
    """Return what must be equal on all ranks of a model: a plan without its KV."""
    if isinstance(plan, str):
        return plan
    versions = [None if kv is None else (kv.base, kv.exact_after) for kv in plan.stored]
    return (plan.held, plan.stop, plan.approximate, versions)
