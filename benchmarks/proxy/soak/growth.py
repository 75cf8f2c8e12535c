"""Growth of the values of a process over its requests. Knows numbers only."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

_WARM_UP = 1 / 3  # of the requests
_SPANS = 24
_T_95 = 2.07  # Student's t for 22 degrees of freedom
# Slopes per 10,000 requests that do not count as growth, whatever their interval.
SMALL = {"RSS in use, MB": 0.2, "open files": 0.2, "threads": 0.1, "tasks": 0.2}


@dataclass
class Sample:
    """The proxy's process at one time."""

    requests: int  # answered so far
    values: dict[str, float]


@dataclass
class Slope:
    """Growth of one value after the warm-up."""

    first: float  # mean of the first span
    last: float  # mean of the last span
    highest: float  # of all samples
    per_10k: float  # requests
    interval: float  # half of the slope's 95 % interval
    grows: bool = False  # the slope is above its interval and above a small figure


def slope(samples: Sequence[Sample], name: str) -> Slope:
    """Fit a line through the means of equal spans after the warm-up.

    Means of spans are less alike than single samples, whose interval would be too narrow.
    """
    first = samples[-1].requests * _WARM_UP
    late = [(s.requests / 1e4, s.values[name]) for s in samples if s.requests >= first]
    count = min(_SPANS, len(late))
    edges = [len(late) * i // count for i in range(count + 1)]
    spans = [late[a:b] for a, b in pairwise(edges)]
    x = [statistics.fmean(answered for answered, _ in span) for span in spans]
    y = [statistics.fmean(value for _, value in span) for span in spans]
    fit = statistics.linear_regression(x, y)
    rest = sum((b - fit.intercept - fit.slope * a) ** 2 for a, b in zip(x, y, strict=True))
    middle = statistics.fmean(x)
    spread = sum((a - middle) ** 2 for a in x)
    error = (rest / max(1, count - 2) / spread) ** 0.5
    highest, interval = max(value for _, value in late), _T_95 * error
    grows = fit.slope > max(interval, SMALL.get(name, float("inf")))
    return Slope(
        first=round(y[0], 2),
        last=round(y[-1], 2),
        highest=round(highest, 2),
        per_10k=round(fit.slope, 2),
        interval=round(interval, 2),
        grows=grows,
    )
