"""Sample the counters of the last hour for the dashboard."""

import asyncio
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Self

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric

from ragboost.hosted.lint.causes import MENDS, Cause
from ragboost.proxy.observability.metrics import HANDED_OVER

_INTERVAL_S = 5.0
_MAX_SAMPLES = 720
_COLUMNS = ("prompt_tokens", "cached_tokens", "requests")
_NO_ERRORS = ("ok", HANDED_OVER)
_NO_FAULTS = ("refused", "client_left")  # errors of clients
RESULTS = ("boosted", "bypassed")


def read_errors(families: Iterable[Metric]) -> dict[str, float]:
    """Return the number of requests that ended in each kind of error, the most frequent first."""
    counts: dict[str, float] = {}
    for family in families:
        for sample in family.samples:
            kind = sample.labels.get("outcome", "ok")
            if sample.name == "ragboost_requests_total" and kind not in _NO_ERRORS:
                counts[kind] = counts.get(kind, 0.0) + sample.value
    return dict(sorted(counts.items(), key=lambda item: -item[1]))


def read_cache_breaks(families: Iterable[Metric]) -> dict[str, dict[str, float | str]]:
    """Return number, lost tokens and mend of each cause for cache misses, the worst first."""
    names = {
        "ragboost_cache_breaks_total": "count",
        "ragboost_cache_break_tokens_total": "lost_tokens",
    }
    figures = {cause: {"count": 0.0, "lost_tokens": 0.0} for cause in Cause}
    for family in families:
        for sample in family.samples:
            if sample.name in names:
                figures[Cause(sample.labels["cause"])][names[sample.name]] += sample.value
    worst = sorted(figures.items(), key=lambda item: -item[1]["lost_tokens"])
    return {str(c): {**each, "mend": MENDS[c]} for c, each in worst if each["count"]}


def read_totals(families: Sequence[Metric]) -> dict[str, float]:
    """Return the page's counters as `/metrics` has them, without what was handed over."""
    totals = {
        "requests": 0.0,
        "errors": sum(
            count for kind, count in read_errors(families).items() if kind not in _NO_FAULTS
        ),
        "bypassed": 0.0,
        "documents_sent": 0.0,
        "documents_dropped": 0.0,
        "prompt_tokens": 0.0,
        "cached_tokens": 0.0,
        "reused_tokens": 0.0,
        "recomputed_tokens": 0.0,
        "bought_tokens": 0.0,
        "dropped_tokens": 0.0,
        "cost": 0.0,
        "uncached_cost": 0.0,
        "compared_tokens": 0.0,
        "compared_sent_tokens": 0.0,
        "compared_boosted_tokens": 0.0,
    }
    keys = {
        "ragboost_requests_total": "requests",
        "ragboost_bypass_total": "bypassed",
        "ragboost_prompt_tokens_total": "prompt_tokens",
        "ragboost_cached_prompt_tokens_total": "cached_tokens",
        "ragboost_reused_prompt_tokens_total": "reused_tokens",
        "ragboost_recomputed_prompt_tokens_total": "recomputed_tokens",
        "ragboost_bought_prompt_tokens_total": "bought_tokens",
        "ragboost_dropped_prompt_tokens_total": "dropped_tokens",
        "ragboost_prompt_cost_total": "cost",
        "ragboost_uncached_prompt_cost_total": "uncached_cost",
        "ragboost_compared_document_tokens_total": "compared_tokens",
    }
    for family in families:
        for sample in family.samples:
            if sample.labels.get("outcome") == HANDED_OVER:
                continue
            if sample.name in keys:
                totals[keys[sample.name]] += sample.value
            elif sample.name == "ragboost_documents_total":
                totals[f"documents_{sample.labels['result']}"] += sample.value
            elif sample.name == "ragboost_compared_cached_prompt_tokens_total":
                totals[f"compared_{sample.labels['order']}_tokens"] += sample.value
    return totals


def read_ttft(families: Iterable[Metric]) -> dict[str, dict[str, float | None]]:
    """Return count, median and 95th percentile of the time to first token, boosted and bypassed."""
    counts: dict[str, dict[float, float]] = {result: {} for result in RESULTS}
    return _read_times(families, "ragboost_time_to_first_token_seconds", "result", counts)


def read_arms(families: Sequence[Metric]) -> dict[str, dict[str, float | None]]:
    """Return the same of the arms of a hold-out, with their tokens and cost; empty without one."""
    arms = _read_times(families, "ragboost_arm_time_to_first_token_seconds", "arm", {})
    for name in ("prompt_tokens", "cached_prompt_tokens", "prompt_cost"):
        sums = dict.fromkeys(arms, 0.0)
        for family in families:
            for sample in family.samples:
                if sample.name == f"ragboost_arm_{name}_total":
                    sums[sample.labels["arm"]] += sample.value
        for arm, value in sums.items():
            arms[arm][name.replace("_prompt", "").replace("prompt_cost", "cost")] = value
    return arms


def _read_times(
    families: Iterable[Metric], name: str, label: str, counts: dict[str, dict[float, float]]
) -> dict[str, dict[str, float | None]]:
    """Return the figures of a histogram of seconds by the values of a label.

    Percentiles are interpolated within the buckets, as Prometheus does. `counts` is filled with
    cumulative counts by upper bound.
    """
    for family in families:
        for sample in family.samples:
            if sample.name == f"{name}_bucket":
                buckets = counts.setdefault(sample.labels[label], {})
                bound = float(sample.labels["le"])
                buckets[bound] = buckets.get(bound, 0.0) + sample.value
    return {
        result: {
            "count": max(buckets.values(), default=0.0),
            "p50_ms": _quantile(buckets, 0.5),
            "p95_ms": _quantile(buckets, 0.95),
        }
        for result, buckets in counts.items()
    }


def _quantile(buckets: Mapping[float, float], share: float) -> float | None:
    """Return a quantile of cumulative counts by upper bound, in ms; None without a count."""
    total = max(buckets.values(), default=0.0)
    if not total:
        return None
    below, low = 0.0, 0.0
    for bound, count in sorted(buckets.items()):
        if count >= share * total:
            if bound == float("inf"):
                return low * 1000
            return (low + (bound - low) * (share * total - below) / (count - below)) * 1000
        below, low = count, bound
    return low * 1000


class TotalsHistory:
    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._samples: deque[tuple[float, ...]] = deque(maxlen=_MAX_SAMPLES)
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def as_json(self, now: Mapping[str, float]) -> dict[str, list[float]]:
        columns = zip(*self._samples, _sample(now), strict=True)
        return dict(zip(("time", *_COLUMNS), map(list, columns), strict=True))

    async def _run(self) -> None:
        while True:
            self._samples.append(_sample(read_totals(list(self._registry.collect()))))
            await asyncio.sleep(_INTERVAL_S)


def _sample(totals: Mapping[str, float]) -> tuple[float, ...]:
    return (time.time(), *(totals[name] for name in _COLUMNS))
