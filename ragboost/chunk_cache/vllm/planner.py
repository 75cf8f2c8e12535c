"""The scheduler's side: plan requests, salt approximate blocks, and order the worker's work.

Called by vLLM between steps, in one thread. Knows requests and blocks by number. Does not touch KV.
"""

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

from ragboost.bounded_map import BoundedMap
from ragboost.chunk_cache.core.library import ChunkLibrary
from ragboost.chunk_cache.core.prompt_plan import PromptPlan, find_chunks, plan_digest, plan_prompt
from ragboost.chunk_cache.core.request import (
    PARAMS_KEY,
    EngineChunkRequest,
    in_namespace,
    read_request,
)
from ragboost.chunk_cache.core.settings import EngineChunkSettings
from ragboost.chunk_cache.core.step_budget import StepBudget
from ragboost.chunk_cache.vllm.requests import awaits_blocks, request_refusal, salt_blocks
from ragboost.chunk_cache.vllm.work import ChunkCapture, PromptFill, StepWork, WorkerView

_MAX_KNOWN_PLANS = 4096


@dataclass(slots=True)
class _Tracked:
    """One unfinished request that mentions chunks.

    Attributes:
        request: vLLM's request.
        wanted: its chunks and options.
        tokens: token ids of its prompt.
        library: what held the stored chunks when it arrived; another one belongs to new weights.
        keys: keys of the chunks worth keeping, by number.
        reason: why it is computed exactly; None if it reuses chunks.
        salted_from: number of its first block with approximate KV; None if there is none.
        digest: identity of its approximate KV.
        held: tokens whose KV the engine held when it was scheduled first; None before that.
        uncaptured: numbers of the chunks that may still be taken out of the cache.
        plan: what it reuses, until it is scheduled.
    """

    request: Any
    wanted: EngineChunkRequest
    tokens: list[int]
    library: ChunkLibrary
    keys: dict[int, str]
    reason: str | None
    digest: bytes = b""
    salted_from: int | None = None
    held: int | None = None
    uncaptured: set[int] = field(default_factory=set)
    plan: PromptPlan | None = None


class ChunkPlanner:
    """Chunk reuse in the scheduler.

    Args:
        filler: the worker's side, or what it reports from other processes.
        config: vLLM's configuration.
        settings: our own.

    Attributes:
        blocks: vLLM's cache manager, once it is bound.
        reasons: number of requests computed exactly, by reason.
        withdrawn: hashes of approximate blocks that followers of vLLM's cache events must not take
            for exact ones; whoever publishes them empties the list.
    """

    def __init__(self, filler: WorkerView, config: Any, *, settings: EngineChunkSettings) -> None:
        self.blocks: Any = None
        self.reasons: Counter[str] = Counter()
        self.withdrawn: list[Any] = []
        self._filler = filler
        self._block_size = filler.block_size
        self._defaults = settings.defaults
        scheduled = int(config.scheduler_config.max_num_batched_tokens)
        self._most_rows = scheduled  # of one forward pass
        self._budget = StepBudget(settings.step_tokens or scheduled)
        self._tracked: dict[str, _Tracked] = {}
        self._admitted: dict[str, Any] = {}  # unfinished requests that have had blocks, all kinds
        self._known: BoundedMap[bytes, int] = BoundedMap(max_entries=_MAX_KNOWN_PLANS)
        self._work = StepWork()
        self._paced: set[str] = set()  # requests that wait while they are filled

    @property
    def _library(self) -> ChunkLibrary:
        return self._filler.library  # another one after new weights

    def add(self, request: Any) -> None:
        """Begin to track a request. KV that is only on disk starts loading."""
        wanted = read_request(
            request.kv_transfer_params,
            num_tokens=request.num_prompt_tokens,
            defaults=self._defaults,
        )
        if wanted is None:
            return
        wanted = in_namespace(wanted, request.cache_salt)
        if wanted.measure and wanted.chunks and _length(wanted.chunks[-1]) > self._most_rows:
            wanted = replace(wanted, reason="chunk_too_long")
        if wanted.measure and not self._filler.can_measure:
            wanted = replace(wanted, reason="several_workers")
        refused = request_refusal(request)
        tokens = [] if refused else list(request.prompt_token_ids)
        keys = {} if refused else find_chunks(wanted, tokens, self._library)
        reason = refused or wanted.reason
        tracked = _Tracked(request, wanted, tokens, self._library, keys, reason=reason)
        self._tracked[request.request_id] = tracked
        if refused:
            return
        tracked.uncaptured = set(keys)
        if tracked.reason is None:
            self._library.store.prefetch(list(keys.values()))
            tracked.digest = plan_digest(wanted, tokens)
            known = self._known.get(tracked.digest)
            if known is not None:  # its blocks may still be in the prefix cache
                self._salt(tracked, known)

    def match(self, request: Any, held: int) -> int | None:
        """Return the number of tokens that reuse fills after the `held` ones; None: ask again in
        the next step."""
        tracked = self._tracked.get(request.request_id)
        if tracked is None:
            return 0
        self._paced.discard(request.request_id)
        self._filler.outcomes.pop(request.request_id, None)  # nothing of an earlier one is left
        if request.request_id in self._filler.failed_requests:
            tracked.wanted = replace(tracked.wanted, reason="fill_failed")
        if tracked.library is not self._library:
            tracked.wanted = replace(tracked.wanted, reason="new_weights")
            tracked.reason = "new_weights"
        if tracked.wanted.reason is not None or request_refusal(request):
            tracked.held = held
            return 0
        known = self._known.get(tracked.digest) if tracked.salted_from is None else None
        if known is not None:  # an equal request was planned since: look into its blocks first
            self._salt(tracked, known)
            return None
        plan = plan_prompt(
            tracked.wanted, tracked.tokens, held=held, keys=tracked.keys, library=self._library
        )
        is_reusing = tracked.salted_from is not None and held > self._salted_tokens(tracked)
        if isinstance(plan, str):
            tracked.plan, tracked.held = None, held
            tracked.reason = None if is_reusing else plan
            return 0
        # The filling reads the held blocks before the pass of this step computes any.
        if awaits_blocks(
            request, held, block_size=self._block_size, others=self._admitted.values()
        ):
            return None
        cost = plan.num_to_compute(self._filler.num_layers)
        if self._budget.must_pace(cost):
            self._paced.add(request.request_id)
        elif not self._budget.admit(request.request_id, cost):
            return None
        if plan.approximate is not None:
            first = plan.approximate // self._block_size
            if tracked.salted_from is None or first < tracked.salted_from:
                self._salt(tracked, first)
                self._known.put(tracked.digest, first)
        tracked.plan, tracked.held, tracked.reason = plan, held, None
        return plan.stop - held

    def is_paced(self, request: Any) -> bool:
        """Return True if the request that was just matched waits while it is filled."""
        return request.request_id in self._paced

    def allocated(self, request: Any, num_filled: int) -> None:
        """Order the filling of a request that has got its blocks."""
        self._admitted[request.request_id] = request
        tracked = self._tracked.get(request.request_id)
        if tracked is not None:
            self._withdraw(tracked)
        if tracked is None or tracked.plan is None:
            self._paced.discard(request.request_id)  # it is filled
            return
        if num_filled:
            number = request.request_id
            fill = PromptFill(
                number, tracked.plan, self._block_ids(number), is_paced=number in self._paced
            )
            self._work.fills.append(fill)
            self._filler.outcomes[number] = tracked.plan.counts  # until the worker tells its own
            # What was stored is not taken out again: it would be approximate.
            found = [number for number, kv in enumerate(tracked.plan.stored) if kv is not None]
            tracked.uncaptured.difference_update(found)
        tracked.plan = None

    def next_step(self, num_scheduled: dict[str, int]) -> StepWork:
        """Return the work of the step that has just been scheduled.

        Args:
            num_scheduled: tokens that it computes of each request.
        """
        for request_id, count in num_scheduled.items():
            tracked = self._tracked.get(request_id)
            if request_id in self._filler.failed_requests:
                continue  # vLLM may not know yet, and compute over blocks that are not filled
            if tracked is not None and tracked.uncaptured and tracked.library is self._library:
                self._capture(tracked, tracked.request.num_computed_tokens + count)
        work, self._work = self._work, StepWork()
        work.dropped, work.is_reset = self._filler.take_dropped(), self._filler.take_reset()
        work.rows = self._budget.rows_left(sum(num_scheduled.values()))
        self._budget.next_step()
        return work

    def forget_chunks(self) -> None:
        """Forget all stored chunks, those of unfinished requests included."""
        self._filler.forget_chunks()
        for request_id, tracked in self._tracked.items():
            tracked.keys, tracked.uncaptured, tracked.plan = {}, set(), None
            tracked.wanted = replace(tracked.wanted, reason="cache_reset")
            if request_id not in self._admitted:
                tracked.reason = "cache_reset"

    def is_tracking(self, request_id: str) -> bool:
        """Return True if a request is unfinished and mentions chunks."""
        return request_id in self._tracked

    def finish(self, request: Any) -> dict[str, Any] | None:
        """Stop tracking a request and return what it reports in its output."""
        self._admitted.pop(request.request_id, None)
        if request.request_id in self._paced:
            self._paced.discard(request.request_id)
            self._work.cancelled.append(request.request_id)
        filled = self._filler.outcomes.pop(request.request_id, None)
        tracked = self._tracked.pop(request.request_id, None)
        if tracked is None:
            return None
        if request.request_id in self._filler.failed_requests:
            self._filler.failed_requests.discard(request.request_id)
            tracked.reason = "fill_failed"
        self._withdraw(tracked)
        total = int(request.num_prompt_tokens)
        held = min(tracked.held or 0, total)  # after a preemption it may cover generated tokens
        salted = held if tracked.salted_from is None else self._salted_tokens(tracked)
        stale = max(0, held - salted)  # approximate blocks of an equal request
        if filled is None:
            told: dict[str, Any] = {
                "exact": held - stale,
                "reused": stale,
                "recomputed": 0,
                "computed": total - held,
            }
        else:
            told = {
                "exact": filled.exact - stale,
                "reused": filled.reused + stale,
                "recomputed": filled.recomputed,
                "computed": filled.computed,
            }
        if tracked.reason is not None:
            told["reason"] = tracked.reason
            self.reasons[tracked.reason] += 1
        return {PARAMS_KEY: told}

    def _capture(self, tracked: _Tracked, num_computed: int) -> None:
        """Order the chunks that this step completes, unless they are stored."""
        blocks = None
        for number in sorted(tracked.uncaptured):
            start, stop = tracked.wanted.chunks[number]
            if stop > num_computed:
                break
            tracked.uncaptured.discard(number)
            is_first = number == 0
            if tracked.keys[number] in self._library and not is_first:
                continue
            is_exact = tracked.salted_from is None or stop <= self._salted_tokens(tracked)
            if not is_exact and stop <= (tracked.held or 0):
                continue  # approximate blocks of an equal request
            blocks = blocks or self._block_ids(tracked.request.request_id)
            self._work.captures.append(
                ChunkCapture(
                    tracked.request.request_id,
                    tracked.keys[number],
                    tracked.tokens[:stop],
                    start,
                    blocks,
                    is_exact=is_exact,
                    is_first=is_first,
                )
            )

    def _salt(self, tracked: _Tracked, first: int) -> None:
        salt_blocks(tracked.request, first, salt=tracked.digest)
        tracked.salted_from = first

    def _withdraw(self, tracked: _Tracked) -> None:
        """Note the first approximate block: those after it are found through it."""
        hashes = tracked.request.block_hashes
        if tracked.salted_from is not None and tracked.salted_from < len(hashes):
            self.withdrawn.append(hashes[tracked.salted_from])

    def _salted_tokens(self, tracked: _Tracked) -> int:
        """Return the number of tokens before the first block with approximate KV."""
        return (tracked.salted_from or 0) * self._block_size

    def _block_ids(self, request_id: str) -> list[int]:
        return list(self.blocks.get_block_ids(request_id)[0])


def _length(chunk: tuple[int, int]) -> int:
    return chunk[1] - chunk[0]
