"""Read the dashboard's figures from the metrics, so that page and metrics agree, and sample the
last hour of them."""

import asyncio
import time
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Self

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.samples import Sample

from ragboost.proxy.hosted.causes import MENDS, Cause
from ragboost.requests.formats.detection import ADVICE

# What helps where no request is at fault.
_OTHER_ADVICE = {
    "held_out": "nothing to change: boost.share leaves these unboosted, for comparison",
    "shadow": "remove proxy.shadow (--shadow), which forwards all requests as they came",
    "option": "nothing to change: the client asks for it with options.boost = false",
    "numbered_documents": "take the numbers out of the documents, or do not prescribe the "
    "answer's form: citations of numbers could not be mapped",
    "mixed_shapes": "send the documents of all turns of a conversation in one way",
    "bad_documents": "the log has the first error",
    "context_index": "report it: the log has the error",
    "error": "report it: the log has the error",
}
_CLIENTS = ("refused", "client_left")  # ends that are no fault of a backend or the proxy

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


def _sums(samples: Samples, name: str, label: str) -> dict[str, float]:
    """Add up the samples of a metric by the values of a label, the greatest sum first."""
    counts: defaultdict[str, float] = defaultdict(float)
    for sample in samples.get(name, ()):
        counts[sample.labels[label]] += sample.value
    return dict(sorted(counts.items(), key=lambda item: -item[1]))


def read_errors(samples: Samples) -> dict[str, float]:
    """Return the number of requests that ended in each kind of error, the most frequent first."""
    ends = _sums(samples, "ragboost_requests_total", "outcome")
    return {outcome: num for outcome, num in ends.items() if outcome != "ok"}


def read_cache_breaks(samples: Samples) -> dict[str, dict[str, float | str]]:
    """Return number, lost tokens and mend of each cause for cache misses, the worst first."""
    lost = _sums(samples, "ragboost_cache_break_tokens_total", "cause")
    nums = _sums(samples, "ragboost_cache_breaks_total", "cause")
    return {
        cause: {"count": nums[cause], "lost_tokens": tokens, "mend": MENDS[Cause(cause)]}
        for cause, tokens in lost.items()
    }


def read_not_boosted(samples: Samples) -> list[dict[str, float | str]]:
    """Return number and advice of each reason for not boosting, the most frequent first."""
    reasons = _sums(samples, "ragboost_bypass_total", "reason")
    return [
        {"reason": reason, "requests": num, "advice": advice_for(reason)}
        for reason, num in reasons.items()
    ]


def advice_for(reason: str) -> str:
    return ADVICE.get(reason) or _OTHER_ADVICE.get(reason, "")


def read_totals(samples: Samples) -> dict[str, float]:
    """Return the page's counters as `/metrics` has them, without what was handed over."""
    total, errors = partial(_sum, samples), read_errors(samples)
    completions, bypassed = total("ragboost_detections_total"), total("ragboost_bypass_total")
    cached = total("ragboost_cached_prompt_tokens_total")
    by_order = 0.0 if is_shadow(samples) else read_saved(samples)["order"]
    return {
        "requests": total("ragboost_requests_total"),
        "completions": completions,
        "boosted": completions - bypassed,
        "errors": sum(errors.values()),
        "faults": sum([num for kind, num in errors.items() if kind not in _CLIENTS]),
        "documents_sent": total("ragboost_documents_total", result="sent"),
        "documents_dropped": total("ragboost_documents_total", result="dropped"),
        "prompt_tokens": total("ragboost_prompt_tokens_total"),
        "cached_tokens": cached,
        "engine_cached_tokens": max(0.0, cached - by_order),
        "saved_tokens": sum(read_saved(samples).values()),
        "recomputed_tokens": total("ragboost_recomputed_prompt_tokens_total"),
        "bought_tokens": total("ragboost_bought_prompt_tokens_total"),
    }


def is_shadow(samples: Samples) -> bool:
    """Return True if nothing is boosted, and what it would save is counted."""
    return "ragboost_shadow_saved_prompt_tokens_total" in samples


def read_saved(samples: Samples) -> dict[str, float]:
    """Return the saved tokens by what saved them; order and hints may be negative."""
    prefix = "ragboost_shadow" if is_shadow(samples) else "ragboost"
    saved = partial(_sum, samples, f"{prefix}_saved_prompt_tokens_total")
    extra = partial(_sum, samples, f"{prefix}_extra_prompt_tokens_total")
    return {
        "order": saved(by="order") - extra(by="order"),
        "deduplication": saved(by="deduplication"),
        "reuse": saved(by="reuse"),
        "hints": -extra(by="hints"),
    }


def read_ttft(samples: Samples) -> dict[str, float | None]:
    """Return count, median and 95th percentile of the time to first token of all completions.

    Boosted and other completions are not told apart: they ask for different work. The arms of a
    hold-out may be compared.
    """
    return _read_times(samples, "ragboost_time_to_first_token_seconds").get("", _figures({}))


def read_arms(samples: Samples) -> dict[str, Any]:
    """Return the same of the arms of a hold-out, with their tokens; empty without one."""
    arms = _read_times(samples, "ragboost_time_to_first_token_seconds", "arm")
    arms.pop("", None)
    for arm, figures in arms.items():
        total = partial(_sum, samples, arm=arm)
        figures["prompt_tokens"] = total("ragboost_prompt_tokens_total")
        figures["cached_tokens"] = total("ragboost_cached_prompt_tokens_total")
    return arms


def _read_times(
    samples: Samples, name: str, label: str | None = None
) -> dict[str, dict[str, float | None]]:
    """Return the figures of a histogram of seconds by the values of a label, or under ``."""
    counts: dict[str, dict[float, float]] = {}  # by upper bound, cumulative
    for sample in samples.get(f"{name}_bucket", ()):
        value, bound = sample.labels[label] if label else "", float(sample.labels["le"])
        buckets = counts.setdefault(value, {})
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


_INTERVAL_S = 5.0
_MAX_SAMPLES = 720
_COLUMNS = ("prompt_tokens", "cached_tokens", "saved_tokens")


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
