"""Prometheus metrics of chunk reuse, beside the engine's own."""

from prometheus_client import CollectorRegistry, Counter

from ragboost.chunk_cache.core.token_origins import PromptReport


class ReuseMetrics:
    """Counts prompts with chunks, and the origins of their tokens, in a registry that the engine's
    `/metrics` shows."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._exact = Counter(
            "ragboost_chunk_exact_requests",
            "Requests with chunks that were computed exactly, by reason.",
            ["reason"],
            registry=registry,
        )
        self._reusing = Counter(
            "ragboost_chunk_reusing_requests", "Requests that reused chunks.", registry=registry
        )
        self._tokens = Counter(
            "ragboost_chunk_prompt_tokens",
            "Prompt tokens of requests with chunks, by origin.",
            ["origin"],
            registry=registry,
        )

    def count_exact(self, reason: str) -> None:
        """Count a request that was computed exactly."""
        self._exact.labels(reason).inc()

    def count(self, report: PromptReport) -> None:
        """Count a request that reached the engine with its chunks."""
        origins = report.origins
        if report.reason is not None:
            self.count_exact(report.reason)
        elif origins.reused or origins.recomputed:
            self._reusing.inc()
        for name, count in origins._asdict().items():
            self._tokens.labels(name).inc(count)
