"""Choose the recompute ratio of a route by how often reuse has changed its answers, so that this
stays within a budget.

Knows ratios and the outcomes of checks. Does not know requests, nor how answers are checked.
"""

import math

LADDER: tuple[float | None, ...] = (None, 0.5, 0.3, 0.15, 0.05, 0.0)
"""Recompute ratios, the most careful first; None: exact."""

_GOOD = 0.25  # of the budget: where changes are so rare, a ratio is hardly ever left by mistake
_ALARM = math.log(1000)  # so many checks pass on average until it is
_MAX_PATIENCE = 64
_Z = {0.05: 1.6449, 0.025: 1.96, 0.01: 2.3263}  # quantiles of the normal distribution


def upper_bound(num: int, total: int, *, miss: float = 0.05) -> float:
    """Return a bound of a share of which `num` of `total` were seen; it is too low with a
    probability of `miss` (Wilson's interval with continuity correction, one side)."""
    if num >= total:
        return 1.0
    z, share = _Z[miss], num / total
    root = math.sqrt(z * z - 1 / total + 4 * num * (1 - share) - (4 * share - 2))
    return min(1.0, (2 * num + z * z + 1 + z * root) / (2 * (total + z * z)))


def lower_bound(num: int, total: int, *, miss: float = 0.05) -> float:
    return 1 - upper_bound(total - num, total, miss=miss)


class RatioController:
    """The level of one route on the `LADDER`.

    A sum of log-likelihood ratios (CUSUM) compares a share of changed answers as high as the budget
    with a quarter of it. At `_ALARM` the route moves a level up, to more recomputing; it moves down
    once the share's upper bound is below the budget. A level that was left is tried again after
    twice as many checks each time. A new level begins half way to the alarm. Where the first level
    with reuse fails, answers are exact but for probes, at most a share `budget` of all.
    """

    def __init__(self, budget: float, *, ratio: float) -> None:
        self._budget = budget
        self.level = max(n for n in range(1, len(LADDER)) if (LADDER[n] or 0) >= min(ratio, 0.5))
        self._changed_step = -math.log(_GOOD)
        self._same_step = math.log((1 - budget) / (1 - budget * _GOOD))
        self._patience = [1] * len(LADDER)
        # Since the level was entered.
        self._sum, self._checked, self._changed = _ALARM / 2, 0, 0

    @property
    def ratio(self) -> float | None:
        return LADDER[self.level]

    def add(self, *, is_changed: bool, level: int) -> None:
        """Note the check of an answer that was given at a level."""
        if level != max(1, self.level):  # an earlier one, or a ratio of the request's own
            return
        self._checked += 1
        self._changed += is_changed
        self._sum = max(0.0, self._sum + (self._changed_step if is_changed else self._same_step))
        if self._sum >= _ALARM:
            if self.level:  # not for probes, which fail as expected
                self._patience[level] = min(_MAX_PATIENCE, 2 * self._patience[level])
            self._enter(max(0, self.level - 1))
        elif self._is_known_good():
            self._enter(self.level + 1)

    def _is_known_good(self) -> bool:
        if self.level + 1 == len(LADDER):
            return False
        # Without a changed answer, the bound is below the budget after about 3.6 / budget checks.
        is_patient = self._checked * self._budget >= 3.6 * self._patience[self.level + 1]
        return is_patient and upper_bound(self._changed, self._checked) < self._budget

    def _enter(self, level: int) -> None:
        self.level, self._sum = level, _ALARM / 2
        self._checked = self._changed = 0
