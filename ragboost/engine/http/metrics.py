"""Prometheus metrics of the embedded engine: vLLM's names under the prefix `ragboost_engine_`."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ragboost.engine.runtime.engine import Engine

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_PREFIX = "ragboost_engine_"
_TTFT_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class _EngineState(Collector):
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def collect(self) -> Iterator[Metric]:
        engine, store, cache = self._engine, self._engine.store, self._engine.store.cache
        yield _counter("prefix_cache_queries", "Prompt tokens looked up.", store.queried_tokens)
        yield _counter("prefix_cache_hits", "Prompt tokens found there.", store.hit_tokens)
        yield _gauge("num_requests_running", "Requests being computed.", engine.num_running)
        yield _gauge("num_requests_waiting", "Requests waiting to start.", engine.num_waiting)
        yield _gauge(
            "kv_cache_usage_perc", "Filled share of the prefix cache, 0 to 1.", store.usage
        )
        size = cache.num_blocks * cache.block_size
        yield _gauge("kv_cache_capacity_tokens", "Capacity of the prefix cache in tokens.", size)
        shape = {"block_size": str(cache.block_size), "num_blocks": str(cache.num_blocks)}
        info = GaugeMetricFamily(
            f"{_PREFIX}cache_config_info", "Shape of the prefix cache.", labels=list(shape)
        )
        info.add_metric(list(shape.values()), 1)
        yield info
        if engine.chunk_filler is None:
            return
        chunks = engine.chunk_filler
        tokens = CounterMetricFamily(
            f"{_PREFIX}reuse_prompt_tokens",
            "Prompt tokens of requests with chunk reuse, by source of their KV: exact, reused, "
            "recomputed or computed.",
            labels=["source"],
        )
        for source, count in chunks.totals._asdict().items():
            tokens.add_metric([source], count)
        yield tokens
        yield _counter("chunks_stored", "Chunks stored.", chunks.num_stored)


class EngineMetrics:
    def __init__(self, engine: Engine) -> None:
        self._registry = registry = CollectorRegistry()
        registry.register(_EngineState(engine))
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

    def render(self) -> bytes:
        return generate_latest(self._registry)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(_PREFIX + name, text, value=value)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(_PREFIX + name, text, value=value)
