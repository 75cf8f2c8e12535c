"""The metrics of the streams of cache events, read from the streams when somebody asks.

Names and labels are public API. Counts nothing itself.
"""

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ragboost.cache_sync.event_stream import StreamState
from ragboost.cache_sync.sync import CacheSync


class StreamMetrics(Collector):
    """What the streams of cache events count themselves."""

    def __init__(self, sync: CacheSync) -> None:
        self._sync = sync

    def collect(self) -> list[Metric]:
        """Read them."""
        labels = ["backend", "stream"]
        events = CounterMetricFamily(
            "ragboost_kv_events", "Cache events applied.", labels=[*labels, "type"]
        )
        gaps = CounterMetricFamily(
            "ragboost_kv_event_gaps", "Gaps in the numbers of event batches.", labels=labels
        )
        states = GaugeMetricFamily(
            "ragboost_kv_event_stream_state",
            "1 for the state that a stream is in.",
            labels=[*labels, "state"],
        )
        tokens = GaugeMetricFamily(
            "ragboost_kv_resident_tokens", "Tokens that the mirror holds.", labels=labels
        )
        for backend, stream in self._sync.streams:
            where = [backend, stream.name]
            status = stream.status()
            for kind in ("stored", "removed", "cleared"):
                events.add_metric([*where, kind], getattr(status, f"num_{kind}"))
            gaps.add_metric(where, status.num_gaps)
            for state in StreamState:
                states.add_metric([*where, state], float(state is status.state))
            tokens.add_metric(where, status.num_resident_tokens)
        return [events, gaps, states, tokens]
