"""Bootstrap intervals of a mean, and of the difference between two paired arms."""

from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np

CONFIDENCE = 0.95
_RESAMPLES = 10_000
_CELLS = 4_000_000  # drawn at a time


class MeanInterval(NamedTuple):
    mean: float
    low: float  # lower end of the interval at 95 %
    high: float
    num_groups: int  # independent groups of questions: conversations, and single questions


def mean_interval(
    values: Sequence[float] | np.ndarray, *, groups: Sequence[Hashable], seed: int = 0
) -> MeanInterval:
    """Return a mean with its percentile bootstrap interval. Whole groups are drawn, since the turns
    of a conversation are not independent."""
    numbers: dict[Hashable, int] = {}
    group = np.array([numbers.setdefault(name, len(numbers)) for name in groups])
    values = np.asarray(values)
    sums, sizes = np.bincount(group, values), np.bincount(group).astype(float)
    count = len(sizes)
    rng = np.random.default_rng(seed)
    means: list[np.ndarray] = []
    step = max(1, _CELLS // count)
    for begin in range(0, _RESAMPLES, step):
        drawn = rng.integers(count, size=(min(step, _RESAMPLES - begin), count))
        means.append(sums[drawn].sum(1) / sizes[drawn].sum(1))
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(np.concatenate(means), [tail, 1 - tail])
    return MeanInterval(float(values.mean()), float(low), float(high), count)


def paired_difference(
    baseline: Sequence[float], other: Sequence[float], *, groups: Sequence[Hashable], seed: int = 0
) -> MeanInterval:
    """Return the mean of `other - baseline`, of scores 0 to 1, with a percentile bootstrap
    interval. If no question differs in one direction, it is wider there by the largest share that
    zero events among the groups allow (the rule of three, exactly)."""
    difference = np.asarray(other, dtype=float) - np.asarray(baseline, dtype=float)
    if not len(difference):
        return MeanInterval(0.0, -1.0, 1.0, 0)
    mean, low, high, count = mean_interval(difference, groups=groups, seed=seed)
    unseen = 1 - ((1 - CONFIDENCE) / 2) ** (1 / count)
    if not (difference < 0).any():
        low = max(-1.0, low - unseen)
    if not (difference > 0).any():
        high = min(1.0, high + unseen)
    return MeanInterval(mean, low, high, count)
