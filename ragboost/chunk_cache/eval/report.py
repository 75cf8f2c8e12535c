"""Show what policies do at their ratios: a text table, and a plot of scores."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from ragboost.chunk_cache.eval.arms import FULL, REUSE, Arm, ArmSummary
from ragboost.chunk_cache.eval.metrics import Estimate
from ragboost.util.plots import line_plot


def table(rows: Sequence[ArmSummary], scores: Mapping[Arm, Estimate] | None = None) -> str:
    head = ["policy", "ratio", "KL first", "KL answer", "same first", "same answer", "cost"]
    body = [
        [
            row.policy,
            f"{row.ratio:.2f}",
            f"{row.kl:.4f}",
            f"{row.kl_answer:.4f}",
            f"{row.same_first:.2f}",
            f"{row.same_answer:.2f}",
            f"{row.cost:.3f}",
        ]
        for row in rows
    ]
    if scores is not None:
        head[2:2] = ["score", "+-"]
        for row, cells in zip(rows, body, strict=True):
            cells[2:2] = [f"{value:.3f}" for value in scores[row.policy, row.ratio]]
    lines = [head, *body]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if column else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def plot(scores: Mapping[Arm, Estimate], path: Path, *, title: str) -> None:
    """Plot score against recompute ratio, from full reuse at 0 to full attention at 1."""
    ends = [(ratio, scores[policy, ratio].mean) for policy, ratio in (REUSE, FULL)]
    curves: dict[str, list[tuple[float, float]]] = {}
    for (policy, ratio), score in scores.items():
        if (policy, ratio) not in (FULL, REUSE):
            curves.setdefault(policy, list(ends)).append((ratio, score.mean))
    line_plot(
        path,
        {policy: sorted(points) for policy, points in curves.items()},
        title=title,
        x_label="recompute ratio",
        y_label="score",
        is_crowded_left=True,
    )
