"""Plan and run each step: all decode rows, then prefill in chunks up to a token budget. Does not
know threads, text or the model's internals."""

import logging
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from ragboost.engine.runtime.filling import COMPUTE_ERRORS, ChunkFiller, GraphRunner, PromptFiller
from ragboost.engine.runtime.model_runner import ModelRunner
from ragboost.engine.runtime.prefix_store import PrefixStore
from ragboost.engine.runtime.request import EngineRequest

logger = logging.getLogger(__name__)


class ScheduledRows(NamedTuple):
    """Tokens [start, end) of a request to compute in one step."""

    request: EngineRequest
    start: int
    end: int


class StepPlan(NamedTuple):
    rows: list[ScheduledRows]  # each a forward
    filling: EngineRequest | None  # whose prompt is filled besides
    budget: int  # rows left for that


class Scheduler:
    """Continuous batching: requests join and leave between steps. The oldest prompt takes the whole
    prefill budget, so that its blocks are cached before a later one with its prefix is looked up.
    Nothing is preempted: a request owns its KV buffer, and the prefix cache stores less meanwhile.

    Prompts with reused chunks or a graph are filled first, in pieces that use up prefill budget. A
    request whose computation fails, such as for lack of memory, fails alone. One that needs more
    than `max_running_tokens` runs by itself."""

    def __init__(
        self,
        runner: ModelRunner,
        store: PrefixStore,
        *,
        max_running: int,
        max_running_tokens: int,
        max_step_tokens: int,
        chunk_filler: ChunkFiller | None = None,
        graph_runner: GraphRunner | None = None,
    ) -> None:
        self.waiting: deque[EngineRequest] = deque()
        self.running: list[EngineRequest] = []
        self.runner = runner
        self.store = store
        self.max_running = max_running
        self.max_running_tokens = max_running_tokens
        self._max_step_tokens = max_step_tokens
        self.chunk_filler = chunk_filler
        self._graphs = graph_runner
        fillers: tuple[PromptFiller[Any] | None, ...] = (chunk_filler, graph_runner)
        self._fillers = [filler for filler in fillers if filler is not None]
        if graph_runner is not None:
            graph_runner.look_ahead(self.waiting)

    @property
    def has_work(self) -> bool:
        """True if `step` has anything to compute: not while all requests wait for stored KV."""
        return bool(self.running) or self._next_waiting() is not None

    def add(self, request: EngineRequest) -> None:
        self.waiting.append(request)
        if self.chunk_filler is not None:
            self.chunk_filler.add(request)

    def reset(self) -> None:
        """Empty the prefix cache, and forget stored KV if the weights have changed."""
        self.store.cache.clear()
        unfinished = [*self.waiting, *self.running]
        if self.chunk_filler is not None and self.chunk_filler.renew(unfinished) and self._graphs:
            self._graphs.renew()

    def close(self) -> None:
        for filler in self._fillers:
            filler.close()

    def abort(self, request: EngineRequest) -> None:
        if request in self.running:
            self.running.remove(request)
            for filler in self._fillers:
                filler.cancel(request)
            self.store.release(request)
        elif request in self.waiting:
            self.waiting.remove(request)

    def step(self) -> list[EngineRequest]:
        """Compute rows of each request, emit tokens, and return the requests that have ended."""
        with torch.inference_mode():
            plan = self._plan()
            for rows in plan.rows:
                with _failing_alone(rows.request):
                    self._compute(*rows)
            self._fill(plan)
        ended = [request for request in self.running if request.finish_reason is not None]
        for request in ended:
            self.abort(request)
        return ended

    def _fill(self, plan: StepPlan) -> None:
        request = plan.filling
        if request is None:
            return
        filler = self.chunk_filler if request.prompt.graph is None else self._graphs
        assert filler is not None, "a prompt to fill without a filler"
        with _failing_alone(request):
            filler.fill(request, rows=plan.budget)

    def _compute(self, request: EngineRequest, start: int, end: int) -> None:
        assert request.kv is not None, "scheduled without KV"
        logits = self.runner.forward(
            request.token_ids[start:end],
            request.kv,
            start=start,
            num_logits=max(0, end - max(start, request.first_logits)),
        )
        request.num_computed = end
        self.store.save(request)
        request.score(logits, end=end)
        if end == len(request.token_ids):
            is_first = end == request.num_prompt_tokens
            request.append(logits[-1])
            if is_first and self.chunk_filler is not None:
                self.chunk_filler.finish_prompt(request)

    def _plan(self) -> StepPlan:
        rows = [
            ScheduledRows(request, request.num_computed, len(request.token_ids))
            for request in self.running
            if not request.is_prefilling
        ]
        # Decode alone may fill the budget; prefill must still advance, or it would starve.
        budget = max(self._max_step_tokens - len(rows), self.store.block_size)
        prefilling = deque(request for request in self.running if request.is_prefilling)
        filling = [filler.filling for filler in self._fillers]
        while budget > 0 and (request := self._next_prefill(prefilling)) is not None:
            if request in filling:  # its KV must stay as it was when that began
                return StepPlan(rows, request, budget)
            with _failing_alone(request):
                self._begin(request)
            if request.finish_reason is not None:
                continue
            if request.is_filling:
                return StepPlan(rows, request, budget)
            next_rows = self._next_rows(request, budget)
            if next_rows.end <= next_rows.start:
                break
            rows.append(next_rows)
            budget -= next_rows.end - next_rows.start
        return StepPlan(rows, None, budget)

    def _next_prefill(self, prefilling: deque[EngineRequest]) -> EngineRequest | None:
        if prefilling:
            return prefilling.popleft()
        request = self._next_waiting()
        if request is None or not self._has_room(request):
            return None
        self.waiting.remove(request)
        self.store.queried_tokens += request.num_prompt_tokens
        self.running.append(request)
        return request

    def _next_waiting(self) -> EngineRequest | None:
        """Return the first request whose stored KV is not on its way."""
        if self.chunk_filler is None:
            return self.waiting[0] if self.waiting else None
        is_loading = self.chunk_filler.is_loading
        return next((request for request in self.waiting if not is_loading(request)), None)

    def _has_room(self, request: EngineRequest) -> bool:
        if not self.running:
            return True
        num_tokens = sum(one.max_kv_tokens for one in [*self.running, request])
        return len(self.running) < self.max_running and num_tokens <= self.max_running_tokens

    def _begin(self, request: EngineRequest) -> None:
        if request.kv is None:
            request.kv = self.runner.new_kv(request.max_kv_tokens)
        if request.prompt.graph is None:
            self.store.load(request)

    def _next_rows(self, request: EngineRequest, budget: int) -> ScheduledRows:
        end = min(request.num_computed + budget, len(request.token_ids))
        if end < len(request.token_ids):
            end -= end % self.store.block_size  # the next step begins with a block
        return ScheduledRows(request, request.num_computed, end)


@contextmanager
def _failing_alone(request: EngineRequest) -> Iterator[None]:
    """Fail the request if its computation fails; the end of the step releases what it holds."""
    try:
        yield
    except COMPUTE_ERRORS as error:
        logger.error("a request of %d tokens failed", len(request.token_ids), exc_info=error)
        request.fail()
