"""Decide what each step computes: every decode row, then prefill in chunks up to a token budget.

Knows sequences, the prefix store and when chunks are reused. Does not know threads, text or the
model's insides.
"""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ragboost.engine.runtime.chunk_scheduler import ChunkScheduler
from ragboost.engine.runtime.graph import Graphs
from ragboost.engine.runtime.model_runner import ModelRunner
from ragboost.engine.runtime.prefix_store import PrefixStore
from ragboost.engine.runtime.request import EngineRequest

STORING_SHARE = 8
"""Chunks are stored with one part in so many of a step that computes something else, too."""


class Work(NamedTuple):
    """Positions of a sequence, (rows,), ascending, to be computed in one step."""

    sequence: EngineRequest
    positions: Tensor

    @property
    def end(self) -> int:
        """The position behind the last one."""
        return int(self.positions[-1]) + 1


class Step(NamedTuple):
    """What one step does.

    Attributes:
        works: rows of one forward.
        choosing: a sequence that goes on choosing what to compute, or None.
        budget: rows that are left for that, or for storing chunks.
    """

    works: list[Work]
    choosing: EngineRequest | None
    budget: int


class Scheduler:
    """Continuous batching: requests join and leave between steps.

    First come, first served: the oldest prompt takes the whole prefill budget, so that it is in the
    prefix cache before a later request with the same prefix is looked up. Nothing is preempted;
    a sequence owns its KV buffer, and the prefix cache simply stores less when it is full of
    blocks in use.

    Of a prompt with reused chunks first what to compute is chosen, in pieces that take the place of
    prefill rows, then these rows are computed, wherever they stand, as rows of ordinary steps.
    Chunks that were not stored are computed for themselves with an eighth of each step, and with
    all of it when nothing else is to do. A prompt with a graph is computed at once, whatever its
    length, but for its last token.

    Attributes:
        waiting: submitted, not yet started.
        running: started; at most `max_running`.
    """

    def __init__(
        self,
        runner: ModelRunner,
        store: PrefixStore,
        *,
        max_running: int,
        max_step_tokens: int,
        reuser: ChunkScheduler | None = None,
        graphs: Graphs | None = None,
    ) -> None:
        self.waiting: deque[EngineRequest] = deque()
        self._has_queue_changed = False
        self.running: list[EngineRequest] = []
        self._runner = runner
        self._store = store
        self._max_running = max_running
        self._max_step_tokens = max_step_tokens
        self._reuser = reuser
        self._graphs = graphs
        if graphs is not None:
            graphs.look_ahead(lambda: [(s.graph, s.salt) for s in self.waiting if s.graph])

    @property
    def has_work(self) -> bool:
        """Whether `step` has anything to compute."""
        is_storing = self._reuser is not None and self._reuser.has_work
        return bool(self.waiting or self.running) or is_storing

    def add(self, sequence: EngineRequest) -> None:
        """Queue a sequence."""
        self.waiting.append(sequence)
        self._has_queue_changed = True
        if self._reuser is not None:
            self._reuser.prefetch(sequence)

    def close(self) -> None:
        """Stop what goes on between steps."""
        if self._reuser is not None:
            self._reuser.close()

    def abort(self, sequence: EngineRequest) -> None:
        """Forget a sequence at once, and free what it holds. Unknown ones are ignored."""
        if sequence in self.running:
            self.running.remove(sequence)
            if self._reuser is not None:
                self._reuser.forget(sequence)
            self._store.release(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)
            self._has_queue_changed = True

    def step(self) -> list[EngineRequest]:
        """Compute one batch, emit its tokens, and return the sequences that have ended."""
        with torch.inference_mode():
            works, choosing, budget = self._plan()
            if self._has_queue_changed:
                self._has_queue_changed = False
                self._store.look_ahead(self.waiting)
            for (sequence, positions), logits in zip(works, self._compute(works), strict=True):
                sequence.computed(positions)
                self._store.save(sequence)
                if logits is not None:
                    sequence.append(logits)
            self._reuse(choosing, works, budget)
        ended = [sequence for sequence in self.running if sequence.is_finished]
        for sequence in ended:
            self.abort(sequence)
        return ended

    def _reuse(self, choosing: EngineRequest | None, works: Sequence[Work], budget: int) -> None:
        """Give what is left of a step to reuse."""
        if self._reuser is None:
            return
        if choosing is not None:
            self._reuser.choose(choosing, rows=budget)
        elif self._reuser.has_work:
            share = STORING_SHARE if works else 1
            self._reuser.store_missing(rows=max(1, self._max_step_tokens // share))

    def _compute(self, works: Sequence[Work]) -> list[Tensor | None]:
        """Run the model; the logits of the works that end at the newest token."""
        if not works:
            return []
        segments = []
        for work in works:
            sequence = work.sequence
            assert sequence.kv is not None, "planned without a KV cache"
            segments.append(
                self._runner.segment(
                    [sequence.token_ids[position] for position in work.positions.tolist()],
                    sequence.kv,
                    positions=work.positions,
                    wants_logits=work.end == len(sequence.token_ids),
                )
            )
        logits = iter(self._runner.forward(segments))
        return [next(logits) if segment.wants_logits else None for segment in segments]

    def _plan(self) -> Step:
        works = [
            Work(sequence, self._range(sequence.num_computed, len(sequence.token_ids)))
            for sequence in self.running
            if not sequence.is_prefilling
        ]
        # Decode alone may fill the budget; prefill still advances, or it would starve.
        budget = max(self._max_step_tokens - len(works), self._store.block_size)
        prefilling = deque(s for s in self.running if s.is_prefilling)
        choosing = self._reuser.choosing if self._reuser is not None else None
        while budget > 0 and (sequence := self._next_prefill(prefilling)) is not None:
            if sequence is choosing:  # over what it held when it began
                return Step(works, sequence, budget)
            if self._graphs is not None and sequence.graph is not None:
                budget -= self._graphs.compute(sequence)
            elif sequence.rows is None:
                self._store.load(sequence)
            if sequence.is_choosing:
                return Step(works, sequence, budget)
            positions = self._next_rows(sequence, budget)
            if not len(positions):
                break
            works.append(Work(sequence, positions))
            budget -= len(positions)
        return Step(works, None, budget)

    def _next_prefill(self, prefilling: deque[EngineRequest]) -> EngineRequest | None:
        if prefilling:
            return prefilling.popleft()
        if not self.waiting or len(self.running) >= self._max_running:
            return None
        sequence = self.waiting.popleft()
        self._has_queue_changed = True
        expected = sequence.num_prompt_tokens + min(sequence.params.max_tokens, 256)
        sequence.kv = self._runner.new_kv(expected)
        self._store.queried_tokens += sequence.num_prompt_tokens
        self.running.append(sequence)
        return sequence

    def _next_rows(self, sequence: EngineRequest, budget: int) -> Tensor:
        """Positions to compute next, at most `budget`."""
        if sequence.rows is not None:
            return sequence.rows[:budget]
        end = sequence.num_computed + budget
        if end >= len(sequence.token_ids):
            return self._range(sequence.num_computed, len(sequence.token_ids))
        # On a block border unless the prompt ends.
        return self._range(sequence.num_computed, end - end % self._store.block_size)

    def _range(self, start: int, end: int) -> Tensor:
        return torch.arange(start, max(start, end), device=self._runner.device)
