"""Show a batch job on a terminal: a progress bar and a table, both on standard error."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from ragboost.batch.files import side_path
from ragboost.batch.reading import Progress as ProgressFunction
from ragboost.batch.summary import BatchSummary


@contextmanager
def progress_bar(console: Console, *, is_shown: bool) -> Iterator[ProgressFunction]:
    """A function that moves a bar, one row for each stage."""
    columns = (TextColumn("{task.description:<9}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not is_shown) as progress:
        tasks: dict[str, TaskID] = {}

        def move(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = progress.add_task(stage, total=total)
            progress.update(tasks[stage], completed=done, total=total)

        yield move


def summary_table(summary: BatchSummary) -> Table:
    """The summary for people."""
    capacity = "unbounded" if summary.cache_tokens is None else f"{summary.cache_tokens:,} tokens"
    blocks = f", blocks of {summary.block_size}" if summary.block_size else ""
    table = Table(title=f"Predicted prefix cache ({capacity}{blocks})", title_justify="left")
    for heading in ("", "before", "after"):
        table.add_column(heading, justify="right" if heading else "left")
    before, after = summary.before, summary.after
    table.add_row("document tokens", f"{before.prompt_tokens:,}", f"{after.prompt_tokens:,}")
    table.add_row("cached tokens", f"{before.cached_tokens:,}", f"{after.cached_tokens:,}")
    table.add_row("hit rate", f"{before.hit_rate:.1%}", f"{after.hit_rate:.1%}")
    return table


def summary_sentence(summary: BatchSummary) -> str:
    """What was written, in one line."""
    return (
        f"{summary.requests:,} requests written, {summary.requests_reordered:,} with another "
        f"document order, {summary.duplicates_removed:,} of {summary.documents:,} documents "
        "removed as duplicates"
    )


def warning(summary: BatchSummary, output: Path) -> str:
    """That there were malformed lines, and where they are."""
    return f"warning: malformed lines: {summary.rejected:,}, see {side_path(output, 'rejects')}"
