"""Show what policies do at their ratios: a text table."""

from collections.abc import Mapping, Sequence

from ragboost.chunk_cache.eval.arms import Arm, ArmSummary
from ragboost.chunk_cache.eval.metrics import Estimate


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
