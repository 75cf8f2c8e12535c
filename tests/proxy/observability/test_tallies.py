import pytest
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from ragboost.proxy.observability.tallies import CounterTallies, HistogramTallies


def test_reading_the_registry_brings_its_metrics_up_to_date() -> None:
    registry = CollectorRegistry()
    counter = CounterTallies("requests", "Requests.", registry=registry)
    histogram = HistogramTallies("seconds", "Seconds.", buckets=(1, 2), registry=registry)
    for _ in range(2):
        counter.inc()
        counter.inc(2.5)
        for value in (0.5, 1.5, 5):
            histogram.observe(value)
    for _ in range(2):  # nothing is counted twice
        assert registry.get_sample_value("requests_total") == 7
        assert registry.get_sample_value("seconds_count") == 6
        assert registry.get_sample_value("seconds_sum") == 14
        assert registry.get_sample_value("seconds_bucket", {"le": "2.0"}) == 4
    assert b"requests_total 7.0" in generate_latest(registry)


@pytest.mark.parametrize("buckets", [(0.5, 1, 2.5), (-1.0, 0.0, 1.0)])
@pytest.mark.parametrize("labels", [(), ("kind", "state")])
def test_a_histogram_reads_as_the_librarys_own(
    buckets: tuple[float, ...], labels: tuple[str, ...]
) -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    tallies = HistogramTallies("seconds", "Seconds.", labels, buckets=buckets, registry=ours)
    histogram = Histogram("seconds", "Seconds.", labels, buckets=buckets, registry=theirs)
    for values in [("a", "b"), ("a", 'c"')] if labels else [()]:
        child = histogram.labels(*values) if values else histogram
        for value in (-2, -1, 0, 0.25, 0.5, 1, 2.5, 3):
            tallies.observe(value, *values)
            child.observe(value)
    shown = [_without_times(generate_latest(registry)) for registry in (ours, theirs)]
    assert shown[0] == shown[1]


@pytest.mark.parametrize("labels", [(), ("kind", "state")])
def test_a_counter_reads_as_the_librarys_own(labels: tuple[str, ...]) -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    tallies = CounterTallies("seconds_total", "Seconds.", labels, registry=ours)
    counter = Counter("seconds_total", "Seconds.", labels, registry=theirs)
    for values in [("a", "b"), ("a", 'c"')] if labels else [()]:
        for amount in (1, 0, 2.5):
            tallies.inc(amount, *values)
            (counter.labels(*values) if values else counter).inc(amount)
    shown = [_without_times(generate_latest(registry)) for registry in (ours, theirs)]
    assert shown[0] == shown[1]


def _without_times(text: bytes) -> list[bytes]:
    return [
        line.rpartition(b" ")[0] if line.startswith(b"seconds_created") else line
        for line in text.splitlines()
    ]


def test_a_counter_never_decreases() -> None:
    registry = CollectorRegistry()
    tally = CounterTallies("requests", "Requests.", registry=registry)
    with pytest.raises(ValueError, match="-1"):
        tally.inc(-1)
    assert registry.get_sample_value("requests_total") == 0
