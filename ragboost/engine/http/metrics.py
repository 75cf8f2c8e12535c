"""Prometheus metrics of the embedded engine: vLLM's names under the prefix `ragboost_engine_`."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from ragboost.engine.runtime.core import Engine

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_PREFIX = "ragboost_engine_"
_TTFT_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class _StoreCounters(Collector):
    """Counters that the prefix store and chunk reuse keep themselves."""

    def __init__(self, engine: Engine) -> None:
        self._store = engine.store
        self._reuser = engine.reuser

    def collect(self) -> list[Metric]:
        """Read them."""
        queries = CounterMetricFamily(
            f"{_PREFIX}prefix_cache_queries", "Prompt tokens looked up in the prefix cache."
        )
        queries.add_metric([], self._store.queried_tokens)
        hits = CounterMetricFamily(
            f"{_PREFIX}prefix_cache_hits", "Prompt tokens found in the prefix cache."
        )
        hits.add_metric([], self._store.hit_tokens)
        return [queries, hits, *self._reuse()]

    def _reuse(self) -> list[Metric]:
        if self._reuser is None:
            return []
        totals = self._reuser.totals
        tokens = CounterMetricFamily(
            f"{_PREFIX}reuse_prompt_tokens",
            "Prompt tokens of requests with chunk reuse, by where their KV came from: exact, "
            "approximate, recomputed or computed.",
            labels=["source"],
        )
        for source in ("exact", "approximate", "recomputed", "computed"):
            tokens.add_metric([source], getattr(totals, source))
        stored = CounterMetricFamily(f"{_PREFIX}chunks_stored", "Chunks computed and stored.")
        stored.add_metric([], totals.chunks_stored)
        return [tokens, stored]


class EngineMetrics:
    """All metrics of one engine, in a registry of their own.

    Attributes:
        generated_tokens: tokens given to clients.
    """

    def __init__(self, engine: Engine) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_StoreCounters(engine))
        self.generated_tokens = Counter(
            f"{_PREFIX}generation_tokens", "Tokens generated.", registry=self._registry
        )
        self._requests = Counter(
            f"{_PREFIX}requests",
            "Requests by how they ended: stop, length, abort, error or rejected.",
            ["finished_reason"],
            registry=self._registry,
        )
        self._ttft = Histogram(
            f"{_PREFIX}time_to_first_token_seconds",
            "From a request's arrival in the engine to its first token.",
            buckets=_TTFT_BUCKETS,
            registry=self._registry,
        )
        cache = engine.store.cache
        self._gauge("num_requests_running", "Requests being computed.").set_function(
            lambda: engine.num_running
        )
        self._gauge("num_requests_waiting", "Requests that wait.").set_function(
            lambda: engine.num_waiting
        )
        self._gauge(
            "kv_cache_usage_perc", "Filled share of the prefix cache, 0 to 1."
        ).set_function(lambda: engine.store.usage)
        self._gauge("kv_cache_capacity_tokens", "Tokens that the prefix cache holds.").set(
            cache.num_blocks * cache.block_size
        )
        info = self._gauge(
            "cache_config_info", "Shape of the prefix cache.", "block_size", "num_blocks"
        )
        info.labels(block_size=str(cache.block_size), num_blocks=str(cache.num_blocks)).set(1)

    def first_token(self, seconds: float) -> None:
        """Record the time to a first token."""
        self._ttft.observe(seconds)

    def finished(self, reason: str) -> None:
        """Count a request that has ended."""
        self._requests.labels(finished_reason=reason).inc()

    def render(self) -> bytes:
        """The exposition text."""
        return generate_latest(self._registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(_PREFIX + name, text, labels, registry=self._registry)
