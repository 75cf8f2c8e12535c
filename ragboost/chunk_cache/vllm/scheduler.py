"""The scheduler's side: plan requests, salt approximate blocks, and order the workers' work. Called
by vLLM between steps, in one thread. Does not touch KV."""

from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Any, NamedTuple

from ragboost.chunk_cache.core.fill_budget import StepBudget
from ragboost.chunk_cache.core.library import ChunkLibrary
from ragboost.chunk_cache.core.prompt_plan import PromptPlan, plan_digest, unless_slower
from ragboost.chunk_cache.core.request import PARAMS_KEY, PromptReport
from ragboost.chunk_cache.core.reusing_request import ReusingRequest
from ragboost.chunk_cache.core.settings import EngineChunkSettings
from ragboost.chunk_cache.vllm.compat import BlockSalt, block_ids, request_refusal
from ragboost.chunk_cache.vllm.data import BlockCapture, PromptFill, StepWork, WorkerView
from ragboost.util.bounded_map import BoundedMap

_MAX_SALTED_PLANS = 4096


class RequestState(Enum):
    """State of a request that mentions chunks. `match` changes none of them.

               match: the number of tokens to fill
      WAITING --------------------------------------> PLANNED
         |                                               | allocated
         | allocated, nothing to fill                    v
         +-----------------> RUNNING <--------------- FILLING    vLLM waits for its KV
                             (or preempted)              | the worker has failed
                                                         v
                                                      FAILED     vLLM computes it

    PLANNED is a WAITING request with a plan that is up to date (`ChunkScheduler._plans`).
    """

    WAITING = auto()  # without blocks; vLLM asks for it in every step
    FILLING = auto()  # has blocks, and waits while they are filled
    RUNNING = auto()  # its blocks are filled, or there was nothing to fill
    FAILED = auto()  # its filling failed


class Match(NamedTuple):
    num_tokens: int | None  # that reuse fills behind the prefix; None: ask again in the next step
    is_filled: bool = False  # vLLM waits for the worker to fill them


class _Plan(NamedTuple):
    prefix_tokens: int
    plan: PromptPlan | str  # or why it is computed exactly


@dataclass(slots=True, eq=False)
class _Tracked:
    vllm: Any  # vLLM's request
    asked: ReusingRequest
    library: ChunkLibrary  # of its arrival; another one belongs to new weights
    digest: bytes  # identity of its approximate KV
    state: RequestState = RequestState.WAITING
    salt: BlockSalt | None = None  # of its approximate blocks
    proposed: BlockSalt | None = None  # of the last match, while it has no blocks
    # Another choice of the same answer (`n` above 1), which was filled: they have one prompt.
    sibling: "_Tracked | None" = None
    report: PromptReport | None = None  # once it has ended


class ChunkScheduler:
    cache_manager: Any = None  # vLLM's, once it is bound

    def __init__(self, worker: WorkerView, config: Any, *, settings: EngineChunkSettings) -> None:
        # Hashes of approximate blocks that followers of vLLM's cache events must not take for exact
        # ones, until they are told.
        self.withdrawn: list[Any] = []
        self._worker = worker
        self._block_size = worker.block_size
        self._defaults = settings.defaults
        self._max_rows = int(config.scheduler_config.max_num_batched_tokens)  # of a forward pass
        self._budget = StepBudget(settings.step_tokens or self._max_rows)
        self._tracked: dict[str, _Tracked] = {}
        self._salted: BoundedMap[bytes, int] = BoundedMap(max_entries=_MAX_SALTED_PLANS)
        self._work = StepWork()
        # Plans hold stored KV: none outlives a change of the store, which may have dropped it.
        self._plans: dict[str, _Plan] = {}
        self._plans_of: object = None
        self._salts: dict[str, BlockSalt] = {}  # of requests matched in this step, until allocated

    @property
    def _library(self) -> ChunkLibrary:
        return self._worker.library  # another one after new weights

    def add(self, request: Any) -> None:
        entry = (request.kv_transfer_params or {}).get(PARAMS_KEY)
        if entry is None:
            return
        asked = ReusingRequest.read(
            request.request_id,
            entry,
            request.prompt_token_ids,
            refusal=request_refusal(request),
            namespace=[request.cache_salt],
            library=self._library,
            defaults=self._defaults,
            measurable_tokens=self._max_rows if self._worker.can_measure else None,
        )
        digest = b"" if asked.reason else plan_digest(asked.options, asked.tokens)
        tracked = _Tracked(request, asked, self._library, digest)
        self._tracked[request.request_id] = tracked
        first = self._salted.get(digest) if digest else None
        if first is not None:  # blocks of an equal request may still be in the prefix cache
            self._salt(tracked, first)

    def match(self, request: Any, prefix_tokens: int) -> Match:
        """Return the tokens that reuse fills behind those of the prefix cache. Changes nothing but
        the hashes of approximate blocks, which are plain again unless vLLM allocates them."""
        tracked = self._tracked.get(request.request_id)
        if tracked is None:
            return Match(0)
        is_possible = self._find_reason(tracked) is None
        if is_possible and tracked.asked.awaits_chunks(self._library, prefix_tokens=prefix_tokens):
            self._propose_salt(tracked, None)
            return Match(None)
        plan = self._plan(tracked, prefix_tokens)
        if isinstance(plan, str):
            self._propose_salt(tracked, None)
            return Match(0)
        first = None if plan.approximate is None else plan.approximate // self._block_size
        self._propose_salt(tracked, first)
        return Match(plan.stop - plan.prefix_tokens, is_filled=True)

    def allocated(self, request: Any, num_filled: int) -> None:
        request_id = request.request_id
        tracked = self._tracked.get(request_id)
        if tracked is None:
            return
        planned, salt = self._plans.pop(request_id, None), self._salts.pop(request_id, None)
        tracked.proposed = None  # it holds for the hashes of a request that has not run
        if tracked.state is not RequestState.FAILED:
            tracked.state = RequestState.RUNNING
        if salt is not None:
            tracked.salt = salt
            self._salt_equal(tracked)
        if planned is not None:  # else it is filled, and vLLM goes on with it
            self._begin(tracked, planned, num_filled)
        self._withdraw(tracked)

    def next_step(self, num_scheduled: dict[str, int]) -> StepWork:
        """Return the work of the step just scheduled, with its number of tokens by request."""
        self._note_failures()
        for request_id, count in num_scheduled.items():
            tracked = self._tracked.get(request_id)
            if tracked is None or tracked.state is RequestState.FAILED:
                continue
            if tracked.library is self._library:
                self._capture(tracked, count)
        for salt in self._salts.values():
            salt.remove()
        self._salts.clear()
        self._drop_old_plans()
        work = self._work
        work.dropped, work.num_resets = self._worker.take_dropped(), self._worker.num_resets
        work.wanted, work.num_tokens = self._worker.take_wanted(), sum(num_scheduled.values())
        # One that decodes takes a pass over all weights: as a sample of prefill it is far too slow.
        num_prefill = sum(count for count in num_scheduled.values() if count > 1)
        work.is_prefill = 2 * num_prefill > work.num_tokens
        work.generation = self._worker.generation
        return self.last_work(num_tokens=work.num_tokens)

    def last_work(self, *, num_tokens: int = 0) -> StepWork:
        """Return what is ordered, also if a call has failed: the fillings that requests wait for
        go on."""
        work, self._work = self._work, StepWork()
        work.rows = self._budget.rows_left(num_tokens)
        return work

    def forget_chunks(self) -> None:
        """Forget all stored chunks, those of unfinished requests included."""
        self._worker.forget_chunks()
        self._plans.clear()
        for tracked in self._tracked.values():
            asked = tracked.asked
            asked.forget_chunks()
            asked.options = replace(asked.options, reason="cache_reset")
            if tracked.state is RequestState.WAITING:
                asked.reason = "cache_reset"

    def is_tracking(self, request_id: str) -> bool:
        return request_id in self._tracked

    def finish(self, request: Any) -> PromptReport | None:
        request_id = request.request_id
        self._note_failures()
        self._plans.pop(request_id, None)
        tracked = self._tracked.pop(request_id, None)
        if tracked is None:
            return None
        if tracked.state is RequestState.FILLING:
            self._work.cancelled.append(request_id)
        elif tracked.state is RequestState.FAILED:
            self._worker.failed_requests.discard(request_id)
            tracked.asked.reason = "fill_failed"
        self._withdraw(tracked)
        sibling = tracked.sibling or tracked
        tracked.report = sibling.report or self._report(sibling)
        self._worker.outcomes.pop(request_id, None)
        return tracked.report

    def _report(self, tracked: _Tracked) -> PromptReport:
        asked, num_tokens = tracked.asked, int(tracked.vllm.num_prompt_tokens)
        origins = self._worker.outcomes.get(asked.request_id)
        report = asked.report(origins, num_tokens=num_tokens)
        # 0              exact_tokens          prefix_tokens                num_prompt_tokens
        # | exact blocks | those of an equal   |  filled, or computed        |
        # |              | request: reused     |                             |
        prefix_tokens = min(asked.prefix_tokens, num_tokens)
        stale = max(0, prefix_tokens - self._exact_tokens(tracked, default=prefix_tokens))
        exact, reused = report.origins.exact - stale, report.origins.reused + stale
        return report._replace(origins=report.origins._replace(exact=exact, reused=reused))

    def _plan(self, tracked: _Tracked, prefix_tokens: int) -> PromptPlan | str:
        """Return the plan of a request: once for a prefix and a state of the store."""
        self._drop_old_plans()
        self._note_failures()
        asked = tracked.asked
        found = self._plans.get(asked.request_id)
        reason = self._find_reason(tracked)
        if reason is not None:
            found = _Plan(prefix_tokens, reason)
        elif found is None or found.prefix_tokens != prefix_tokens:
            plan = asked.plan(self._library, prefix_tokens=prefix_tokens)
            plan = unless_slower(plan, self._worker.speed, num_layers=self._worker.num_layers)
            found = _Plan(prefix_tokens, plan)
        self._plans[asked.request_id] = found
        return found.plan

    def _find_reason(self, tracked: _Tracked) -> str | None:
        """Return why a request reuses nothing, whatever is stored."""
        if tracked.state is RequestState.FAILED:
            return "fill_failed"
        if tracked.library is not self._library:
            return "new_weights"
        return tracked.asked.options.reason

    def _drop_old_plans(self) -> None:
        version = (self._library, self._library.store.version)
        if version != self._plans_of:
            self._plans_of = version
            self._plans.clear()

    def _note_failures(self) -> None:
        for request_id in self._tracked.keys() & self._worker.failed_requests:
            self._tracked[request_id].state = RequestState.FAILED

    def _begin(self, tracked: _Tracked, planned: _Plan, num_filled: int) -> None:
        asked, (prefix_tokens, plan) = tracked.asked, planned
        self._worker.outcomes.pop(asked.request_id, None)  # nothing is left of an earlier filling
        asked.prefix_tokens, asked.reason = prefix_tokens, None
        is_equal = prefix_tokens > self._exact_tokens(tracked, default=prefix_tokens)
        if is_equal:  # it reuses the blocks of an equal request
            tracked.sibling = self._find_sibling(tracked)
        if not isinstance(plan, str):
            if num_filled:
                self._order(tracked, plan)
        elif self._find_reason(tracked) or not is_equal:
            asked.reason = plan

    def _find_sibling(self, tracked: _Tracked) -> _Tracked | None:
        reply_to, filled = tracked.asked.reply_to, self._worker.outcomes
        others = [self._tracked[request_id] for request_id in filled.keys() & self._tracked.keys()]
        return next((one for one in others if reply_to and one.asked.reply_to == reply_to), None)

    def _order(self, tracked: _Tracked, plan: PromptPlan) -> None:
        request_id = tracked.asked.request_id
        blocks = block_ids(self.cache_manager, request_id)
        tracked.state = RequestState.FILLING
        self._work.fills.append(PromptFill(request_id, plan, blocks))
        self._worker.outcomes[request_id] = plan.counts  # until the worker tells its own
        tracked.asked.keep_stored(plan)

    def _capture(self, tracked: _Tracked, num_scheduled: int) -> None:
        """Order the chunks that this step completes, unless they are stored."""
        pass_start = tracked.vllm.num_computed_tokens
        chunks = tracked.asked.take_captures(
            self._library,
            pass_start=pass_start,
            num_computed=pass_start + num_scheduled,
            exact_stop=None if tracked.salt is None else self._exact_tokens(tracked),
        )
        if chunks:
            request_id = tracked.asked.request_id
            blocks = block_ids(self.cache_manager, request_id)
            self._work.captures += [BlockCapture(request_id, chunk, blocks) for chunk in chunks]

    def _propose_salt(self, tracked: _Tracked, first: int | None) -> None:
        """Salt the blocks of a matched request from `first` on, for this step; None: none."""
        request_id = tracked.asked.request_id
        if first is not None and tracked.salt is not None and first >= tracked.salt.first:
            first = None  # they are salted
        applied = self._salts.get(request_id)
        if applied is not None and applied.first != first:
            self._salts.pop(request_id).remove()
        if first is None or request_id in self._salts:
            return
        if tracked.proposed is None or tracked.proposed.first != first:
            tracked.proposed = BlockSalt(tracked.vllm, first, salt=tracked.digest)
        tracked.proposed.apply()
        self._salts[request_id] = tracked.proposed

    def _salt_equal(self, tracked: _Tracked) -> None:
        """Let requests that are equal to one with approximate blocks look into these first."""
        assert tracked.salt is not None, "a request without approximate blocks"
        self._salted.put(tracked.digest, tracked.salt.first)
        for request_id, other in self._tracked.items():
            is_new = other.state is RequestState.WAITING and request_id not in self._salts
            if is_new and other.digest == tracked.digest and other.salt is None:
                self._salt(other, tracked.salt.first)

    def _salt(self, tracked: _Tracked, first: int) -> None:
        tracked.proposed = None
        tracked.salt = BlockSalt(tracked.vllm, first, salt=tracked.digest)
        tracked.salt.apply()

    def _withdraw(self, tracked: _Tracked) -> None:
        """Note the first approximate block: those after it are found through it."""
        first = None if tracked.salt is None else tracked.salt.first_hash()
        if first is not None:
            self.withdrawn.append(first)

    def _exact_tokens(self, tracked: _Tracked, *, default: int = 0) -> int:
        return default if tracked.salt is None else tracked.salt.first * self._block_size
