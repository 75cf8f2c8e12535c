"""Decide what each step computes: every decode row, then prefill in chunks up to a token budget.

Knows sequences and the prefix store. Does not know threads, text or the model's insides.
"""

from collections import deque
from collections.abc import Sequence as SequenceOf
from typing import NamedTuple

import torch
from torch import Tensor

from ragboost.engine.model_runner import ModelRunner
from ragboost.engine.prefix_store import PrefixStore
from ragboost.engine.sequence import Sequence


class Work(NamedTuple):
    """Tokens `num_computed` to `end` of a sequence, to be computed in one step."""

    sequence: Sequence
    end: int


class Scheduler:
    """Continuous batching: requests join and leave between steps.

    First come, first served: the oldest prompt takes the whole prefill budget, so that it is in the
    prefix cache before a later request with the same prefix is looked up. Nothing is preempted;
    a sequence owns its KV buffer, and the prefix cache simply stores less when it is full of
    blocks in use.

    Attributes:
        waiting: submitted, not yet started.
        running: started; at most `max_running`.
    """

    def __init__(
        self, runner: ModelRunner, store: PrefixStore, *, max_running: int, max_step_tokens: int
    ) -> None:
        self.waiting: deque[Sequence] = deque()
        self._has_queue_changed = False
        self.running: list[Sequence] = []
        self._runner = runner
        self._store = store
        self._max_running = max_running
        self._max_step_tokens = max_step_tokens

    @property
    def has_work(self) -> bool:
        """Whether `step` has anything to compute."""
        return bool(self.waiting or self.running)

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence."""
        self.waiting.append(sequence)
        self._has_queue_changed = True

    def abort(self, sequence: Sequence) -> None:
        """Forget a sequence at once, and free what it holds. Unknown ones are ignored."""
        if sequence in self.running:
            self.running.remove(sequence)
            self._store.release(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)
            self._has_queue_changed = True

    def step(self) -> list[Sequence]:
        """Compute one batch, emit its tokens, and return the sequences that have ended."""
        with torch.inference_mode():
            works = self._plan()
            if self._has_queue_changed:
                self._has_queue_changed = False
                self._store.look_ahead(self.waiting)
            for (sequence, end), logits in zip(works, self._compute(works), strict=True):
                sequence.num_computed = end
                self._store.save(sequence)
                if logits is not None:
                    sequence.append(logits)
        ended = [sequence for sequence in self.running if sequence.is_finished]
        for sequence in ended:
            self.abort(sequence)
        return ended

    def _compute(self, works: SequenceOf[Work]) -> list[Tensor | None]:
        """Run the model; the logits of the works that end at the newest token."""
        segments = []
        for sequence, end in works:
            assert sequence.kv is not None, "planned without a KV cache"
            segments.append(
                self._runner.segment(
                    sequence.token_ids[sequence.num_computed : end],
                    sequence.kv,
                    start=sequence.num_computed,
                    wants_logits=end == len(sequence.token_ids),
                )
            )
        logits = iter(self._runner.forward(segments))
        return [next(logits) if segment.wants_logits else None for segment in segments]

    def _plan(self) -> list[Work]:
        works = [
            Work(sequence, len(sequence.token_ids))
            for sequence in self.running
            if not sequence.is_prefilling
        ]
        # Decode alone may fill the budget; prefill still advances, or it would starve.
        budget = max(self._max_step_tokens - len(works), self._store.block_size)
        prefilling = deque(s for s in self.running if s.is_prefilling)
        while budget > 0 and (sequence := self._next_prefill(prefilling)) is not None:
            self._store.load(sequence)
            end = self._chunk_end(sequence, budget)
            if end == sequence.num_computed:
                break
            works.append(Work(sequence, end))
            budget -= end - sequence.num_computed
        return works

    def _next_prefill(self, prefilling: deque[Sequence]) -> Sequence | None:
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

    def _chunk_end(self, sequence: Sequence, budget: int) -> int:
        """End of the next chunk: on a block border unless the prompt ends."""
        end = sequence.num_computed + budget
        if end >= len(sequence.token_ids):
            return len(sequence.token_ids)
        return max(end - end % self._store.block_size, sequence.num_computed)
