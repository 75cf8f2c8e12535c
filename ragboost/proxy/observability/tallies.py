"""Count in tallies, handed to the metrics when these are read.

A request pays for an addition, not for the locks and checks of each metric.
"""

import math
import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString


class CounterTallies(Collector):
    """A counter, brought up to date when it is read."""

    def __init__(
        self, name: str, text: str, labels: tuple[str, ...] = (), *, registry: CollectorRegistry
    ) -> None:
        self._counter, self._labelnames = Counter(name, text, labels, registry=None), labels
        self._behind: dict[tuple[str, ...], float] = {}
        registry.register(self)

    def inc(self, amount: float = 1, *labels: str) -> None:
        if amount < 0:
            raise ValueError(f"a counter cannot be increased by {amount}")
        self._behind[labels] = self._behind.get(labels, 0) + amount

    def collect(self) -> Iterable[Metric]:
        behind, self._behind = self._behind, {}
        for labels, amount in behind.items():
            (self._counter.labels(*labels) if labels else self._counter).inc(amount)
        return self._counter.collect()

    describe = collect  # so that the registry knows its name


class HistogramTallies(Collector):
    """A histogram: the library's own takes as long for a value as routing takes for a request."""

    def __init__(
        self,
        name: str,
        text: str,
        labels: tuple[str, ...] = (),
        *,
        buckets: tuple[float, ...],
        registry: CollectorRegistry,
    ) -> None:
        self._name, self._text, self._labelnames = name, text, labels
        self._bounds = (*map(float, buckets), math.inf)  # upper ones
        self._counts: dict[tuple[str, ...], list[int]] = {}  # by bucket
        self._sums: dict[tuple[str, ...], float] = {}
        self._created: dict[tuple[str, ...], float] = {}
        if not labels:
            self._add(())
        registry.register(self)

    def observe(self, value: float, *labels: str) -> None:
        counts = self._counts.get(labels) or self._add(labels)
        counts[bisect_left(self._bounds, value)] += 1
        self._sums[labels] += value

    def collect(self) -> Iterable[Metric]:
        metric = Metric(self._name, self._text, "histogram")
        for values in list(self._counts):
            own = dict(zip(self._labelnames, values, strict=True))
            for suffix, labels, value in self._samples(values):
                metric.add_sample(self._name + suffix, {**own, **labels}, value)
        return (metric,)

    describe = collect

    def _add(self, labels: tuple[str, ...]) -> list[int]:
        self._created[labels], self._sums[labels] = time.time(), 0.0
        counts = self._counts[labels] = [0] * len(self._bounds)
        return counts

    def _samples(self, values: tuple[str, ...]) -> Iterator[tuple[str, dict[str, str], float]]:
        """Yield suffix, labels and value of each sample, as the library orders them."""
        total = 0
        for bound, count in zip(self._bounds, self._counts[values], strict=True):
            total += count
            text: str = floatToGoString(bound)  # type: ignore[no-untyped-call]
            yield "_bucket", {"le": text}, total
        yield "_count", {}, total
        if self._bounds[0] >= 0:
            yield "_sum", {}, self._sums[values]
        yield "_created", {}, self._created[values]
