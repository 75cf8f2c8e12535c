"""Format evaluation results: a text table, JSON, and a plot of quality against ratio."""

import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ragboost.chunk_cache.eval.arms import ArmSummary
from ragboost.chunk_cache.eval.runner import EvalRow
from ragboost.plots import line_plot


def table(rows: Sequence[EvalRow]) -> str:
    head = ("task", "policy", "ratio", "score", "+-", "normalised", "KL", "computed", "TTFT ms")
    body = [
        (
            row.task,
            row.policy,
            f"{row.ratio:.2f}",
            f"{row.score:.3f}",
            f"{row.error:.3f}",
            "-" if math.isnan(row.normalised) else f"{row.normalised:.3f}",
            f"{row.kl:.4f}",
            f"{row.recomputed:.3f}",
            f"{1000 * row.ttft_s:.1f}",
        )
        for row in rows
    ]
    return _aligned([head, *body])


def _aligned(lines: Sequence[Sequence[str]], *, num_names: int = 2) -> str:
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column < num_names else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def calibration_table(rows: Sequence[ArmSummary]) -> str:
    head = ("policy", "ratio", "KL first", "KL answer", "same first", "same answer", "cost")
    body = [
        (
            row.policy,
            f"{row.ratio:.2f}",
            f"{row.kl:.4f}",
            f"{row.kl_answer:.4f}",
            f"{row.same_first:.2f}",
            f"{row.same_answer:.2f}",
            f"{row.cost:.3f}",
        )
        for row in rows
    ]
    return _aligned([head, *body], num_names=1)


def as_json(rows: Sequence[EvalRow]) -> list[dict[str, Any]]:
    return [
        {name: None if _is_nan(value) else value for name, value in asdict(row).items()}
        for row in rows
    ]


def plot(rows: Sequence[EvalRow], path: Path, *, task: str) -> None:
    """Plot score against recompute ratio, from full reuse at 0 to full attention at 1."""
    line_plot(
        path,
        curves(rows, task=task),
        title=task,
        x_label="recompute ratio",
        y_label="score",
        is_crowded_left=True,
    )


def curves(rows: Sequence[EvalRow], *, task: str) -> dict[str, list[tuple[float, float]]]:
    """Return points (ratio, score) by policy, each with `reuse` and `full` as its ends."""
    chosen = [row for row in rows if row.task == task]
    ends = {row.policy: row for row in chosen if row.policy in ("full", "reuse")}
    lines: dict[str, list[tuple[float, float]]] = {}
    for row in chosen:
        if row.policy not in ends:
            lines.setdefault(row.policy, []).append((row.ratio, row.score))
    for points in lines.values():
        points += [(row.ratio, row.score) for row in ends.values()]
        points.sort()
    return lines


def _is_nan(value: object) -> bool:
    return isinstance(value, float) and math.isnan(value)
