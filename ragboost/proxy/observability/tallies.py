"""Count in tallies, handed to the metrics when these are read.

A request pays for an addition, not for the locks and checks of each metric.
"""

from collections.abc import Callable, Iterable
from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

_MAX_VALUES = 1024  # of a histogram, before they are added
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
    """The values that a histogram has not seen, at most `_MAX_VALUES`."""

    __slots__ = ("_histogram", "_values")

    def __init__(self, histogram: Histogram) -> None:
        self._histogram = histogram
        self._values: list[float] = []

    def observe(self, value: float) -> None:
        self._values.append(value)
        if len(self._values) >= _MAX_VALUES:
            self.flush()

    def flush(self) -> None:
        values, self._values = self._values, []
        for value in values:
            self._histogram.observe(value)


class TalliesByLabels(dict[tuple[str, ...], T]):
    """The tallies of a metric's children by their labels, made on first use."""

    def __init__(self, tally: Callable[..., T]) -> None:
        self._tally = tally

    def __missing__(self, labels: tuple[str, ...]) -> T:
        child = self[labels] = self._tally(*labels)
        return child


class Tallies(Collector):
    """The tallies of one registry, in which they are to be the first collector: reading the
    registry flushes them."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._all: list[CounterTally | HistogramTally] = []
        registry.register(self)

    def counter(self, counter: Counter) -> CounterTally:
        """Return a new tally in place of a counter, which nobody else may increase."""
        tally = CounterTally(counter)
        self._all.append(tally)
        return tally

    def histogram(self, histogram: Histogram) -> HistogramTally:
        tally = HistogramTally(histogram)
        self._all.append(tally)
        return tally

    def collect(self) -> Iterable[Metric]:
        for tally in self._all:
            tally.flush()
        return ()
