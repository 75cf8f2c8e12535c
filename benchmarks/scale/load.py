"""Ways to schedule requests, arrivals in an open loop, and the figures of a run under load.

Knows no engine.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from benchmarks.command import show_rows

BURST = 8  # requests that arrive at once, on average
Arrivals = Literal["poisson", "bursts"]

PLAIN: dict[str, Any] = {
    "ordering": {"enabled": False},
    "hints": {"order": False},
    "waiting_room": {"mode": "off"},
}
ARMS: dict[str, dict[str, Any]] = {
    "plain": PLAIN,
    "online": {"waiting_room": {"mode": "off"}},
    "adaptive": {"waiting_room": {"mode": "adaptive"}},
    "planned": PLAIN,
}
"""Sections of the proxy's settings; `planned` has its requests reordered."""
SHOWN = ("plain", "online", "adaptive")
LOADS = (0.3, 0.6, 0.8, 0.9, 1.0, 1.1, 1.2)
TTFT_BOUND = 10.0
WARM_UP = 8  # unmeasured requests that find the engine idle


def arrival_gaps(count: int, *, per_s: float, arrivals: Arrivals, seed: int) -> list[float]:
    """Return the seconds before each request: a Poisson process, of requests or of bursts."""
    rng = np.random.default_rng(seed)
    if arrivals == "poisson":
        return [float(gap) for gap in rng.exponential(1 / per_s, count)]
    gaps: list[float] = []
    while len(gaps) < count:
        size = int(rng.integers(1, 2 * BURST))
        gaps += [float(rng.exponential(BURST / per_s)), *[0.0] * (size - 1)]
    return gaps[:count]


class Response(NamedTuple):
    """One measured response: its arrival and first token, in seconds since the start."""

    arrived: float
    first_token: float


def load_figures(responses: Sequence[Response], *, ttft_bound_s: float) -> dict[str, float]:
    """Return `ttft_p50_s`, `_p95_s`, `_p99_s`, `goodput_per_s` and `good_share`.

    Goodput counts the responses within the bound, over the time from the first arrival to the last
    first token.
    """
    ttft = np.array([each.first_token - each.arrived for each in responses])
    duration = max(each.first_token for each in responses) - responses[0].arrived
    good = int((ttft <= ttft_bound_s).sum())
    quantiles = np.percentile(ttft, [50, 95, 99])
    return {
        "ttft_p50_s": round(float(quantiles[0]), 3),
        "ttft_p95_s": round(float(quantiles[1]), 3),
        "ttft_p99_s": round(float(quantiles[2]), 3),
        "goodput_per_s": round(good / duration, 4),
        "good_share": round(good / len(responses), 4),
    }


def compare_rows(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Compare adaptive with plain and online, over the rows of one workload and engine.

    `peak_goodput_per_s` is over all loads, and `adaptive_over_*` are ratios of it;
    `worst_p99_ratio` is the greatest ratio of the adaptive p99 to that of online at the same load.
    """
    peaks: dict[str, float] = {}
    for row in rows:
        peaks[row["arm"]] = max(peaks.get(row["arm"], 0.0), row["goodput_per_s"])
    result: dict[str, Any] = {"peak_goodput_per_s": peaks}
    for arm in ("plain", "online"):
        if peaks.get(arm) and "adaptive" in peaks:
            result[f"adaptive_over_{arm}"] = round(peaks["adaptive"] / peaks[arm], 3)
    p99 = {(row["arm"], row["arrivals"], row["load"]): row["ttft_p99_s"] for row in rows}
    ratios = {
        (arrivals, load): value / p99["online", arrivals, load]
        for (arm, arrivals, load), value in p99.items()
        if arm == "adaptive" and p99.get(("online", arrivals, load))
    }
    if ratios:
        worst = max(ratios, key=lambda at: ratios[at])
        result["worst_p99_ratio"] = round(ratios[worst], 3)
        result["worst_p99_at"] = list(worst)
    return result


def show(results: Sequence[Mapping[str, Any]]) -> None:
    for result in results:
        show_rows(result["rows"], result["workload"])
        print({name: value for name, value in result.items() if name != "rows"})
