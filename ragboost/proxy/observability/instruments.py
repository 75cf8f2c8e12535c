"""Counters and histograms of the library, for which a request pays less.

The library checks the labels of each value and takes a lock to find the metric that has them, and
looks for a histogram's bucket one by one.
"""

from bisect import bisect_left
from typing import Any, Self

import prometheus_client


class Counter(prometheus_client.Counter):
    def labels(self, *values: str) -> Self:  # type: ignore[override]
        """Return the counter with these labels."""
        return self._metrics.get(values) or super().labels(*values)  # type: ignore[return-value]

    def inc(self, amount: float = 1, exemplar: Any = None) -> None:
        if amount > 0:
            self._value.inc(amount)
        elif amount < 0:
            raise ValueError(f"a counter cannot be increased by {amount}")


class Histogram(prometheus_client.Histogram):
    def labels(self, *values: str) -> Self:  # type: ignore[override]
        """Return the histogram with these labels."""
        return self._metrics.get(values) or super().labels(*values)  # type: ignore[return-value]

    def observe(self, amount: float, exemplar: Any = None) -> None:
        self._sum.inc(amount)
        self._buckets[bisect_left(self._upper_bounds, amount)].inc(1)
