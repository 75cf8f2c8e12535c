import pytest
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from ragboost.proxy.observability.tallies import Tallies


def test_reading_the_registry_brings_its_metrics_up_to_date() -> None:
    registry = CollectorRegistry()
    tallies = Tallies(registry)
    counter = tallies.counter(Counter("requests", "Requests.", registry=registry))
    histogram = tallies.histogram(
        Histogram("seconds", "Seconds.", buckets=(1, 2), registry=registry)
    )
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


def test_values_that_nobody_reads_do_not_pile_up() -> None:
    registry = CollectorRegistry()
    histogram = Histogram("seconds", "Seconds.", registry=registry)
    tally = Tallies(registry).histogram(histogram)
    for _ in range(5000):
        tally.observe(1)
    assert next(s.value for s in histogram.collect()[0].samples if s.name == "seconds_count") > 4000


def test_a_counter_never_decreases() -> None:
    registry = CollectorRegistry()
    tally = Tallies(registry).counter(Counter("requests", "Requests.", registry=registry))
    with pytest.raises(ValueError, match="-1"):
        tally.inc(-1)
    assert registry.get_sample_value("requests_total") == 0
