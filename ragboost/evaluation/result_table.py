"""Show an evaluation on a terminal."""

from rich.box import SIMPLE
from rich.table import Table

from ragboost.evaluation.results import OrderEvaluation


def result_table(result: OrderEvaluation) -> Table:
    """Return a row per arm, with the paired difference of the chosen metric in points."""
    compared, total = result.num_compared, result.num_questions
    title = f"{compared:,} of {total:,} questions answered in every arm"
    table = Table(title=title, title_justify="left", box=SIMPLE, padding=0)
    metrics = list(result.arms[0].scores)
    table.add_column("arm", no_wrap=True)
    table.add_column("changed", justify="right")
    table.add_column("cached", justify="right")
    for metric in metrics:
        table.add_column(metric, justify="right")
    table.add_column(f"Δ {result.metric}", justify="right", no_wrap=True)
    table.add_column("95 %", justify="right", no_wrap=True)
    for at, arm in enumerate(result.arms):
        difference = arm.differences[result.metric]
        table.add_row(
            arm.arm.name,
            f"{arm.num_changed:,}",
            f"{arm.predicted_hit_rate:.1%}",
            *(f"{100 * arm.scores[metric]:.1f}" for metric in metrics),
            "" if at == 0 else f"{100 * difference.mean:+.1f}",
            "" if at == 0 else f"{100 * difference.low:+.1f} to {100 * difference.high:+.1f}",
        )
    return table
