"""Prometheus metrics of chunk reuse, beside the engine's own."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge

from ragboost.chunk_cache.core.token_origins import PromptReport

_GAUGES: Mapping[str, str] = MappingProxyType(
    {
        "entries": "Stored chunks, by place.",
        "bytes": "Bytes of stored chunks, by place that says so.",
        "capacity_bytes": "Capacity of a place.",
    }
)
_COUNTERS: Mapping[str, tuple[str, tuple[str, ...]]] = MappingProxyType(
    {
        "hits": ("Look-ups that found a chunk in memory.", ()),
        "misses": ("Look-ups that did not, by reason: absent, loading, not_loaded.", ("reason",)),
        "loads": (
            "Chunks that a place was asked for: loaded, absent, evicted (once known there), "
            "failed; or would have been: slower than computing, unavailable.",
            ("tier", "outcome"),
        ),
        "load_seconds": ("Time of loading from a place.", ("tier",)),
        "evictions": ("Chunks evicted from a place, by this engine.", ("tier",)),
        "fills": ("Prompts filled from stored chunks.", ()),
        "fill_seconds": ("Time of filling them, recomputation included.", ()),
    }
)


class ReuseMetrics:
    """Counts prompts with chunks, the origins of their tokens, and what the store holds."""

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

        self._declare_store(registry)

    def _declare_store(self, registry: CollectorRegistry) -> None:
        self._gauges = {
            name: Gauge(
                f"ragboost_chunk_store_{name}",
                text,
                ["tier"],
                registry=registry,
                multiprocess_mode="mostrecent",
            )
            for name, text in _GAUGES.items()
        }
        self._counters = {
            name: Counter(f"ragboost_chunk_store_{name}", text, labels, registry=registry)
            for name, (text, labels) in _COUNTERS.items()
        }
        self._counted: dict[tuple[str, ...], float] = {}

    def set_store(self, answer: Mapping[str, Any] | None) -> None:
        if answer is None or "tiers" not in answer:
            return
        for tier in answer["tiers"]:
            name = tier["name"]
            for field, gauge in (("entries", "entries"), ("size_bytes", "bytes")):
                if tier[field] is not None:
                    self._gauges[gauge].labels(name).set(tier[field])
            if tier["capacity_bytes"] is not None:
                self._gauges["capacity_bytes"].labels(name).set(tier["capacity_bytes"])
            self._count_up(tier["evictions"] or 0, "evictions", name)
            self._count_up(tier["load_seconds"], "load_seconds", name)
            for outcome, count in tier["loads"].items():
                self._count_up(count, "loads", name, outcome)
        self._count_up(answer["hits"], "hits")
        for reason, count in answer["misses"].items():
            self._count_up(count, "misses", reason)
        self._count_up(answer["fills"], "fills")
        self._count_up(answer["fill_seconds"], "fill_seconds")

    def _count_up(self, total: float, *name: str) -> None:
        """Raise a counter to the engine's count, which begins anew with new weights."""
        last = self._counted.get(name, 0.0)
        self._counted[name] = total
        counter = self._counters[name[0]]
        child = counter.labels(*name[1:]) if name[1:] else counter
        child.inc(total - last if total >= last else total)

    def count_exact(self, reason: str) -> None:
        self._exact.labels(reason).inc()

    def count(self, report: PromptReport) -> None:
        origins = report.origins
        if report.reason is not None:
            self.count_exact(report.reason)
        elif origins.reused or origins.recomputed:
            self._reusing.inc()
        for name, count in origins._asdict().items():
            self._tokens.labels(name).inc(count)
