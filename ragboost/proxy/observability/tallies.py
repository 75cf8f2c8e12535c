"""Count in tallies, handed to the metrics when these are read.

A request pays for an addition, not for the locks and checks of each metric.
"""

import math
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

T = TypeVar("T")


class CounterTally:
    __slots__ = ("_behind", "_counter")

    def __init__(self, counter: Counter) -> None:
        self._counter = counter
        self._behind: float = 0

    def inc(self, amount: float = 1) -> None:
        if amount < 0:
            raise ValueError(f"a counter cannot be increased by {amount}")
        self._behind += amount

    def flush(self) -> None:
        behind, self._behind = self._behind, 0
        self._counter.inc(behind)


class HistogramTally:
    """The values of one child of a histogram, counted by bucket."""

    __slots__ = ("_bounds", "_counts", "_created", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds  # upper ones, the last of them infinite
        self._counts = [0] * len(bounds)
        self._sum = 0.0
        self._created = time.time()

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def samples(self) -> Iterator[tuple[str, dict[str, str], float]]:
        """Yield suffix, labels and value of each sample, as the library orders them."""
        total = 0
        for bound, count in zip(self._bounds, self._counts, strict=True):
            total += count
            text: str = floatToGoString(bound)  # type: ignore[no-untyped-call]
            yield "_bucket", {"le": text}, total
        yield "_count", {}, total
        if self._bounds[0] >= 0:
            yield "_sum", {}, self._sum
        yield "_created", {}, self._created


class TalliesByLabels(dict[tuple[str, ...], T]):
    """The tallies of a metric's children by their labels, made on first use."""

    def __init__(self, tally: Callable[..., T]) -> None:
        self._tally = tally

    def __missing__(self, labels: tuple[str, ...]) -> T:
        child = self[labels] = self._tally(*labels)
        return child


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
        bounds = (*map(float, buckets), math.inf)
        self.children = TalliesByLabels(lambda *_: HistogramTally(bounds))
        self._name, self._text, self._labelnames = name, text, labels
        registry.register(self)

    def collect(self) -> Iterable[Metric]:
        metric = Metric(self._name, self._text, "histogram")
        for values, tally in list(self.children.items()):
            own = dict(zip(self._labelnames, values, strict=True))
            for suffix, labels, value in tally.samples():
                metric.add_sample(self._name + suffix, {**own, **labels}, value)
        return (metric,)

    describe = collect  # so that the registry knows its name


class Tallies(Collector):
    """The tallies of one registry, in which they are to be the first collector: reading the
    registry flushes them."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._all: list[CounterTally] = []
        registry.register(self)

    def counter(self, counter: Counter) -> CounterTally:
        """Return a new tally in place of a counter, which nobody else may increase."""
        tally = CounterTally(counter)
        self._all.append(tally)
        return tally

    def collect(self) -> Iterable[Metric]:
        for tally in self._all:
            tally.flush()
        return ()
