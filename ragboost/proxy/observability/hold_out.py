"""Estimate from a hold-out what boosting saves, with an interval that respects conversations.

Keeps sums for a few random groups of conversations, so that memory does not grow.
"""

import math
from typing import NamedTuple

import numpy as np

from ragboost.proxy.observer import conversation_digest
from ragboost.proxy.records import Answer, Placed, SentRequest
from ragboost.requests.parsed_request import ParsedRequest

_GROUPS = 32
_MIN_GROUPS = 16  # of conversations in each arm; the interval of fewer means little
_T = 2.04  # quantile of Student's t for 31 degrees of freedom, 95 % on both sides
_ARMS = ("held_out", "boosted")


class SavedShare(NamedTuple):
    """Share of a prompt's computed tokens that boosting saves, with its interval at 95 %."""

    mean: float
    low: float
    high: float


class HoldOut:
    """Sums of computed prompt tokens by arm and group; an observer of completions."""

    def __init__(self) -> None:
        self._sums = np.zeros((2, len(_ARMS), _GROUPS))  # requests, computed tokens

    async def done(
        self, parsed: ParsedRequest, placed: Placed, sent: SentRequest, answer: Answer
    ) -> None:
        """Add a completion that is in an arm and has reported its usage."""
        usage = answer.usage
        if parsed.arm is None or usage is None or answer.outcome != "ok":
            return
        group = conversation_digest(parsed)[-1] % _GROUPS
        computed = usage.prompt_tokens - (usage.cached_tokens or 0) - (usage.reused_tokens or 0)
        self._sums[:, _ARMS.index(parsed.arm), group] += 1, max(0, computed)

    def saved_share(self) -> SavedShare | None:
        """Return the estimate, its interval by the jackknife over groups; None with too few."""
        if (np.count_nonzero(self._sums[0], axis=1) < _MIN_GROUPS).any():
            return None
        total = self._sums.sum(axis=2, keepdims=True)
        mean, without = _saved(total)[0], _saved(total - self._sums)
        spread = (_GROUPS - 1) / _GROUPS * ((without - without.mean()) ** 2).sum()
        error = _T * math.sqrt(spread)
        return SavedShare(float(mean), float(mean - error), float(mean + error))


def _saved(sums: np.ndarray) -> np.ndarray:
    held_out, boosted = sums[1] / np.maximum(sums[0], 1)
    share: np.ndarray = 1 - boosted / np.maximum(held_out, 1e-9)
    return share
