"""The result of the demo, plain beside boosted, as data and as a table."""

import statistics
from collections.abc import Sequence
from typing import Any

from rich.table import Table

from ragboost.evaluation.demo.replay import WorkloadAnswers
from ragboost.evaluation.endpoint import StreamedAnswer
from ragboost.evaluation.trace_replay import percentile_95

_ROWS = (
    ("requests", "requests", "{:,}"),
    ("prompt tokens", "prompt_tokens", "{:,}"),
    ("cached tokens", "cached_tokens", "{:,}"),
    ("prefill tokens", "prefill_tokens", "{:,}"),
    ("hit rate", "hit_rate", "{:.1%}"),
    ("median TTFT", "ttft_p50_ms", "{:,.0f} ms"),
    ("p95 TTFT", "ttft_p95_ms", "{:,.0f} ms"),
    ("documents de-duplicated", "documents_deduplicated", "{:,}"),
)
_RATIOS = ("prefill_tokens", "hit_rate", "ttft_p50_ms", "ttft_p95_ms")


def summarize(plain: WorkloadAnswers, boosted: WorkloadAnswers) -> dict[str, Any]:
    """Return `sessions`, `conversations`, `all`: each plain, boosted and the improvement."""
    parts = {
        "sessions": (plain.sessions, boosted.sessions),
        "conversations": (plain.conversations, boosted.conversations),
        "all": (plain.sessions + plain.conversations, boosted.sessions + boosted.conversations),
    }
    return {name: _compare(_sum(a), _sum(b)) for name, (a, b) in parts.items()}


def _sum(answers: Sequence[StreamedAnswer]) -> dict[str, float]:
    prompt = sum(answer.usage.prompt_tokens for answer in answers)
    cached = sum(answer.usage.cached_tokens or 0 for answer in answers)
    ttft = [answer.ttft_s * 1000 for answer in answers]
    return {
        "requests": len(answers),
        "prompt_tokens": prompt,
        "cached_tokens": cached,
        "prefill_tokens": prompt - cached,
        "hit_rate": round(cached / prompt, 4) if prompt else 0.0,
        "ttft_p50_ms": round(statistics.median(ttft), 1) if ttft else 0.0,
        "ttft_p95_ms": round(percentile_95(ttft), 1) if ttft else 0.0,
        "documents_deduplicated": sum(answer.documents_dropped for answer in answers),
    }


def _compare(plain: dict[str, float], boosted: dict[str, float]) -> dict[str, Any]:
    ratio = {}
    for name in _RATIOS:
        better, worse = boosted[name], plain[name]
        if name == "hit_rate":
            better, worse = worse, better
        ratio[name] = round(worse / better, 2) if better else None
    return {"plain": plain, "boosted": boosted, "ratio": ratio}


def table(title: str, part: dict[str, Any]) -> Table:
    shown = Table(title=title, title_justify="left", min_width=64)
    shown.add_column("")
    for name in ("plain", "boosted", "better by"):
        shown.add_column(name, justify="right")
    for label, name, form in _ROWS:
        if name.startswith("ttft") and not part["plain"][name]:
            continue  # simulated
        ratio = part["ratio"].get(name)
        shown.add_row(
            label,
            form.format(part["plain"][name]),
            form.format(part["boosted"][name]),
            f"{ratio:.2f}x" if ratio is not None else "",
        )
    return shown
