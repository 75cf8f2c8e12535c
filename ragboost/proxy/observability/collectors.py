"""Show counters that other parts keep, when the metrics are read."""

from typing import Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ragboost.cache_sync.event_stream import StreamState
from ragboost.cache_sync.sync import CacheSync


class CollectedLearner(Protocol):
    """The counters of what is learnt from other processes."""

    @property
    def learned(self) -> int:
        """Prompts of others that this process's indexes have taken over."""


class CollectedWorkers(CollectedLearner, Protocol):
    @property
    def num_alive(self) -> int:
        """The other workers that were heard lately."""

    @property
    def num_lost(self) -> int:
        """Times that messages were lost, and a snapshot asked for."""


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
            values, status = [backend, stream.name], stream.status()
            for kind in ("stored", "removed", "cleared"):
                events.add_metric([*values, kind], getattr(status, f"num_{kind}"))
            gaps.add_metric(values, status.num_gaps)
            rejected.add_metric(values, stream.num_rejected)
            for state in StreamState:
                states.add_metric([*values, state], float(state is status.state))
            tokens.add_metric(values, status.num_resident_tokens)
        return [events, gaps, rejected, states, tokens]


class WorkerCollector(Collector):
    """The counters that the exchange with other workers keeps."""

    def __init__(self, workers: CollectedWorkers) -> None:
        self._workers = workers

    def collect(self) -> list[Metric]:
        workers = self._workers
        return [
            GaugeMetricFamily(
                "ragboost_workers_alive",
                "Other workers of this proxy that were heard lately.",
                value=workers.num_alive,
            ),
            CounterMetricFamily(
                "ragboost_worker_prompts_learned",
                "Prompts of other workers that this worker's indexes have taken over.",
                value=workers.learned,
            ),
            CounterMetricFamily(
                "ragboost_worker_messages_lost",
                "Times that messages of other workers were lost, and a snapshot asked for.",
                value=workers.num_lost,
            ),
        ]


class ReplicaCollector(Collector):
    """The counters of what is learnt from other replicas."""

    def __init__(self, learner: CollectedLearner) -> None:
        self._learner = learner

    def collect(self) -> list[Metric]:
        return [
            CounterMetricFamily(
                "ragboost_replica_prompts_learned",
                "Prompts of other replicas that this process's indexes have taken over.",
                value=self._learner.learned,
            )
        ]
