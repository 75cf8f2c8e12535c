"""Prometheus metrics of chunk reuse, beside the engine's own."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge

from ragboost.chunk_cache.core.request import PromptReport

_PREFIX = "ragboost_chunk_"
# By the field of a place's state; each has the label `tier`.
_GAUGES: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "entries": ("store_entries", "Stored chunks, by tier."),
        "size_bytes": ("store_bytes", "Bytes of stored chunks, by tier that says so."),
        "capacity_bytes": ("store_capacity_bytes", "Capacity of a tier in bytes."),
    }
)
_COUNTERS: Mapping[str, tuple[str, tuple[str, ...]]] = MappingProxyType(
    {
        "exact_requests": (
            "Requests with chunks that were computed exactly, by reason.",
            ("reason",),
        ),
        "reusing_requests": ("Requests that reused chunks.", ()),
        "prompt_tokens": ("Prompt tokens of requests with chunks, by origin.", ("origin",)),
        "store_hits": ("Look-ups that found a chunk in memory.", ()),
        "store_misses": (
            "Look-ups of chunks that were not in memory: absent, loading, not_loaded.",
            ("reason",),
        ),
        "store_loads": (
            "Chunks that a tier was asked for: loaded, absent, evicted (once known there), "
            "failed; or would have been: slower than computing, unavailable.",
            ("tier", "outcome"),
        ),
        "store_load_seconds": ("Time of loading chunks from a tier.", ("tier",)),
        "store_evictions": ("Chunks evicted from a tier, by this engine.", ("tier",)),
        "store_fills": ("Prompts filled from stored chunks.", ()),
        "store_fill_seconds": ("Time of filling prompts, recomputation included.", ()),
    }
)


class ReuseMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self._gauges = {
            field: Gauge(
                _PREFIX + name, text, ["tier"], registry=registry, multiprocess_mode="mostrecent"
            )
            for field, (name, text) in _GAUGES.items()
        }
        self._counters = {
            name: Counter(_PREFIX + name, text, labels, registry=registry)
            for name, (text, labels) in _COUNTERS.items()
        }
        self._counted: dict[tuple[str, ...], float] = {}

    def set_store(self, answer: Mapping[str, Any] | None) -> None:
        if answer is None or "tiers" not in answer:
            return
        for tier in answer["tiers"]:
            name = tier["name"]
            for field, gauge in self._gauges.items():
                if tier[field] is not None:
                    gauge.labels(name).set(tier[field])
            self._count_up(tier["evictions"] or 0, "store_evictions", name)
            self._count_up(tier["load_seconds"], "store_load_seconds", name)
            for outcome, count in tier["loads"].items():
                self._count_up(count, "store_loads", name, outcome)
        for reason, count in answer["misses"].items():
            self._count_up(count, "store_misses", reason)
        for field in ("hits", "fills", "fill_seconds"):
            self._count_up(answer[field], f"store_{field}")

    def count_exact(self, reason: str) -> None:
        self._add(1, "exact_requests", reason)

    def count(self, report: PromptReport) -> None:
        origins = report.origins
        if report.reason is not None:
            self.count_exact(report.reason)
        elif origins.reused or origins.recomputed:
            self._add(1, "reusing_requests")
        for name, count in origins._asdict().items():
            self._add(count, "prompt_tokens", name)

    def _count_up(self, total: float, *name: str) -> None:
        """Raise a counter to the engine's count, which begins anew with new weights."""
        last = self._counted.get(name, 0.0)
        self._counted[name] = total
        self._add(total - last if total >= last else total, *name)

    def _add(self, count: float, name: str, *labels: str) -> None:
        counter = self._counters[name]
        (counter.labels(*labels) if labels else counter).inc(count)
