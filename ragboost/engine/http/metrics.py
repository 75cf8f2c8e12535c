"""Prometheus metrics of the embedded engine: vLLM's names under the prefix `ragboost_engine_`."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from ragboost.engine.runtime.engine import Engine

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_PREFIX = "ragboost_engine_"
_TTFT_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class _EngineCounters(Collector):
    """Counters kept by the prefix store and by chunk reuse."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def collect(self) -> list[Metric]:
        store, chunks = self._engine.store, self._engine.chunk_scheduler
        families: list[Metric] = [
            _counter(
                "prefix_cache_queries",
                "Prompt tokens looked up in the prefix cache.",
                store.queried_tokens,
            ),
            _counter(
                "prefix_cache_hits", "Prompt tokens found in the prefix cache.", store.hit_tokens
            ),
        ]
        if chunks is not None:
            totals = chunks.totals
            tokens = CounterMetricFamily(
                f"{_PREFIX}reuse_prompt_tokens",
                "Prompt tokens of requests with chunk reuse, by source of their KV: exact, "
                "approximate, recomputed or computed.",
                labels=["source"],
            )
            for source in ("exact", "approximate", "recomputed", "computed"):
                tokens.add_metric([source], getattr(totals, source))
            stored = _counter("chunks_stored", "Chunks stored.", totals.chunks_stored)
            evicted = _counter(
                "evicted_prompt_tokens",
                "Prompt tokens evicted before decoding (keep_tokens).",
                totals.evicted,
            )
            families += [tokens, stored, evicted]
        return families


class EngineMetrics:
    """All metrics of one engine, in a registry of their own.

    Attributes:
        generated_tokens: counter of tokens sent to clients.
        finished: counter of requests, labelled `finished_reason`.
        ttft: histogram of seconds.
    """

    def __init__(self, engine: Engine) -> None:
        self._registry = registry = CollectorRegistry()
        registry.register(_EngineCounters(engine))
        self.generated_tokens = Counter(
            f"{_PREFIX}generation_tokens", "Tokens generated.", registry=registry
        )
        self.finished = Counter(
            f"{_PREFIX}requests",
            "Requests by finish reason: stop, length, abort, error or rejected.",
            ["finished_reason"],
            registry=registry,
        )
        self.ttft = Histogram(
            f"{_PREFIX}time_to_first_token_seconds",
            "Seconds from submission to the engine to the first token.",
            buckets=_TTFT_BUCKETS,
            registry=registry,
        )
        store, cache = engine.store, engine.store.cache
        for name, text, read in (
            ("num_requests_running", "Requests being computed.", lambda: engine.num_running),
            ("num_requests_waiting", "Requests waiting to start.", lambda: engine.num_waiting),
            (
                "kv_cache_usage_perc",
                "Filled share of the prefix cache, 0 to 1.",
                lambda: store.usage,
            ),
        ):
            Gauge(_PREFIX + name, text, registry=registry).set_function(read)
        Gauge(
            f"{_PREFIX}kv_cache_capacity_tokens",
            "Capacity of the prefix cache in tokens.",
            registry=registry,
        ).set(cache.num_blocks * cache.block_size)
        Gauge(
            f"{_PREFIX}cache_config_info",
            "Shape of the prefix cache.",
            ["block_size", "num_blocks"],
            registry=registry,
        ).labels(str(cache.block_size), str(cache.num_blocks)).set(1)

    def render(self) -> bytes:
        """Return the exposition text."""
        return generate_latest(self._registry)


def _counter(name: str, text: str, value: float) -> CounterMetricFamily:
    return CounterMetricFamily(_PREFIX + name, text, value=value)
