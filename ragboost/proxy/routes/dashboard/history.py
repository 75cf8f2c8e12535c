"""Sample the counters of the last hour for the dashboard."""

import asyncio
import time
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Self

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.samples import Sample

from ragboost.proxy.hosted.lint.causes import MENDS, Cause
from ragboost.requests.formats.detection import ADVICE

_INTERVAL_S = 5.0
_MAX_SAMPLES = 720
_COLUMNS = ("prompt_tokens", "cached_tokens", "requests")
_NO_FAULTS = ("refused", "client_left")  # errors of clients
RESULTS = ("boosted", "bypassed")

Samples = Mapping[str, Sequence[Sample]]
"""The samples of all metrics by their names."""


def read_samples(families: Iterable[Metric]) -> Samples:
    samples: defaultdict[str, list[Sample]] = defaultdict(list)
    for family in families:
        for sample in family.samples:
            samples[sample.name].append(sample)
    return dict(samples)


def _sum(samples: Samples, name: str, **labels: str) -> float:
    """Add up the samples of a metric that have these labels."""
    found = samples.get(name, ())
    return sum([each.value for each in found if labels.items() <= each.labels.items()], 0.0)


def read_errors(samples: Samples) -> dict[str, float]:
    """Return the number of requests that ended in each kind of error, the most frequent first."""
    counts: defaultdict[str, float] = defaultdict(float)
    for sample in samples.get("ragboost_requests_total", ()):
        if (kind := sample.labels["outcome"]) != "ok":
            counts[kind] += sample.value
    return dict(sorted(counts.items(), key=lambda item: -item[1]))


def read_cache_breaks(samples: Samples) -> dict[str, dict[str, float | str]]:
    """Return number, lost tokens and mend of each cause for cache misses, the worst first."""
    figures = []
    for cause in Cause:
        num = _sum(samples, "ragboost_cache_breaks_total", cause=str(cause))
        lost = _sum(samples, "ragboost_cache_break_tokens_total", cause=str(cause))
        if num:
            figures.append((lost, cause, num))
    figures.sort(key=lambda figure: -figure[0])
    return {str(c): {"count": n, "lost_tokens": lost, "mend": MENDS[c]} for lost, c, n in figures}


def read_detections(samples: Samples) -> list[dict[str, float | str]]:
    """Return number and advice of each detection and frame, the most frequent first."""
    counts: defaultdict[tuple[str, str], float] = defaultdict(float)
    for sample in samples.get("ragboost_detections_total", ()):
        counts[sample.labels["detection"], sample.labels["frame"]] += sample.value
    return [
        {"detection": name, "frame": frame, "requests": num, "advice": ADVICE.get(name, "")}
        for (name, frame), num in sorted(counts.items(), key=lambda item: -item[1])
    ]


def read_totals(samples: Samples) -> dict[str, float]:
    """Return the page's counters as `/metrics` has them, without what was handed over."""
    total = partial(_sum, samples)
    requests, documents = "ragboost_requests_total", "ragboost_documents_total"
    compared = "ragboost_compared_cached_prompt_tokens_total"
    errors = read_errors(samples).items()
    return {
        "requests": total(requests),
        "errors": sum([count for kind, count in errors if kind not in _NO_FAULTS]),
        "bypassed": total("ragboost_bypass_total"),
        "documents_sent": total(documents, result="sent"),
        "documents_dropped": total(documents, result="dropped"),
        "prompt_tokens": total("ragboost_prompt_tokens_total"),
        "cached_tokens": total("ragboost_cached_prompt_tokens_total"),
        "reused_tokens": total("ragboost_reused_prompt_tokens_total"),
        "recomputed_tokens": total("ragboost_recomputed_prompt_tokens_total"),
        "bought_tokens": total("ragboost_bought_prompt_tokens_total"),
        "dropped_tokens": total("ragboost_dropped_prompt_tokens_total"),
        "cost": total("ragboost_prompt_cost_total"),
        "uncached_cost": total("ragboost_uncached_prompt_cost_total"),
        "compared_tokens": total("ragboost_compared_document_tokens_total"),
        "compared_sent_tokens": total(compared, order="sent"),
        "compared_boosted_tokens": total(compared, order="boosted"),
    }


def read_ttft(samples: Samples) -> dict[str, dict[str, float | None]]:
    """Return count, median and 95th percentile of the time to first token, boosted and bypassed."""
    times = _read_times(samples, "ragboost_time_to_first_token_seconds", "result")
    return {result: times.get(result) or _figures({}) for result in RESULTS}


def read_arms(samples: Samples) -> dict[str, dict[str, float | None]]:
    """Return the same of the arms of a hold-out, with their tokens and cost; empty without one."""
    arms = _read_times(samples, "ragboost_arm_time_to_first_token_seconds", "arm")
    for arm, figures in arms.items():
        total = partial(_sum, samples, arm=arm)
        figures["prompt_tokens"] = total("ragboost_arm_prompt_tokens_total")
        figures["cached_tokens"] = total("ragboost_arm_cached_prompt_tokens_total")
        figures["cost"] = total("ragboost_arm_prompt_cost_total")
    return arms


def _read_times(samples: Samples, name: str, label: str) -> dict[str, dict[str, float | None]]:
    """Return the figures of a histogram of seconds by the values of a label."""
    counts: dict[str, dict[float, float]] = {}  # by upper bound, cumulative
    for sample in samples.get(f"{name}_bucket", ()):
        buckets, bound = counts.setdefault(sample.labels[label], {}), float(sample.labels["le"])
        buckets[bound] = buckets.get(bound, 0.0) + sample.value
    return {value: _figures(buckets) for value, buckets in counts.items()}


def _figures(buckets: Mapping[float, float]) -> dict[str, float | None]:
    """Return count and percentiles, interpolated within the buckets, as Prometheus does."""
    return {
        "count": max(buckets.values(), default=0.0),
        "p50_ms": _quantile(buckets, 0.5),
        "p95_ms": _quantile(buckets, 0.95),
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

    def as_json(self) -> dict[str, list[float]]:
        """Return the columns of the samples, the last one taken now."""
        columns = zip(*self._samples, self._sample(), strict=True)
        return dict(zip(("time", *_COLUMNS), map(list, columns), strict=True))

    async def _run(self) -> None:
        while True:
            self._samples.append(self._sample())
            await asyncio.sleep(_INTERVAL_S)

    def _sample(self) -> tuple[float, ...]:
        totals = read_totals(read_samples(self._registry.collect()))
        return (time.time(), *(totals[name] for name in _COLUMNS))
