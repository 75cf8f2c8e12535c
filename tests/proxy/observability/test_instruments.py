"""Our counters and histograms say what those of the library say.

Also run against the lowest supported prometheus-client, by `scripts/check_packages.py`.
"""

from typing import Any

import prometheus_client
import pytest

from ragboost.proxy.observability import instruments

VALUES = (-1, 0, 0.5, 0.50001, 1, 2, 1e9, float("inf"))


def render(kinds: Any) -> list[str]:
    registry = prometheus_client.CollectorRegistry()
    plain = kinds.Counter("plain", "Without labels.", registry=registry)
    counter = kinds.Counter("by_name", "With a label.", ("name",), registry=registry)
    bounds = {"buckets": (0.0, 0.5, 1.0), "registry": registry}
    histogram = kinds.Histogram("sizes", "Without labels.", **bounds)
    labelled = kinds.Histogram("times", "With labels.", ("name", "kind"), **bounds)
    for at, value in enumerate(VALUES):
        plain.inc(at)
        counter.labels("ab"[at % 2]).inc()
        histogram.observe(value)
        labelled.labels("ab"[at % 2], "x").observe(value)
    lines = prometheus_client.generate_latest(registry).decode().splitlines()
    return [line for line in lines if "_created" not in line]


def test_they_say_what_the_library_s_own_say() -> None:
    assert render(instruments) == render(prometheus_client)


def test_a_counter_only_goes_up() -> None:
    with pytest.raises(ValueError, match="-1"):
        instruments.Counter("c", "Counts.", registry=None).inc(-1)


def test_wrong_labels_are_refused() -> None:
    counter = instruments.Counter("c", "Counts.", ("name", "kind"), registry=None)
    with pytest.raises(ValueError, match="label"):
        counter.labels("a")
