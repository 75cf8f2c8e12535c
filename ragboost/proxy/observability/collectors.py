"""Show what other parts keep when the metrics are read: counters, the process, the version."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Info, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ragboost import __version__
from ragboost.cache_sync.event_stream import StreamState
from ragboost.cache_sync.sync import CacheSync


def make_registry() -> CollectorRegistry:
    """Return a registry that knows the process and the version."""
    registry = _Registry()
    ProcessCollector(registry=registry)
    build = Info("ragboost_build", "The version that runs, as a label.", registry=registry)
    build.info({"version": __version__})
    return registry


class _Registry(CollectorRegistry):
    """Leaves out the time at which each counter began, which would be as many series again."""

    def collect(self) -> Iterator[Metric]:
        for family in super().collect():
            family.samples = [s for s in family.samples if not s.name.endswith("_created")]
            yield family


class StreamCollector(Collector):
    """The counters that the streams of cache events keep, read when the metrics are read."""

    def __init__(self, sync: CacheSync) -> None:
        self._sync = sync

    def collect(self) -> list[Metric]:
        labels = ["backend", "stream"]
        events = CounterMetricFamily(
            "ragboost_kv_events", "Cache events applied.", labels=[*labels, "type"]
        )
        gaps = CounterMetricFamily(
            "ragboost_kv_event_gaps", "Gaps in the sequence of event batches.", labels=labels
        )
        rejected = CounterMetricFamily(
            "ragboost_kv_event_rejected_frames",
            "Frames of cache events that were malformed or misnumbered.",
            labels=labels,
        )
        states = GaugeMetricFamily(
            "ragboost_kv_event_stream_state",
            "1 for the state that a stream is in, else 0.",
            labels=[*labels, "state"],
        )
        tokens = GaugeMetricFamily(
            "ragboost_kv_resident_tokens", "Tokens in the mirror of a prefix cache.", labels=labels
        )
        for backend, stream, _ in self._sync.streams:
            values, counts = [backend, stream.name], stream.counts
            for kind in ("stored", "removed", "cleared"):
                events.add_metric([*values, kind], counts[f"num_{kind}"])
            gaps.add_metric(values, counts["num_gaps"])
            rejected.add_metric(values, stream.num_rejected)
            for state in StreamState:
                states.add_metric([*values, state], float(state is stream.state))
            tokens.add_metric(values, stream.mirror.num_resident_tokens)
        return [events, gaps, rejected, states, tokens]
