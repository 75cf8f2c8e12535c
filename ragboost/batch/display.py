"""Show batch jobs and forecasts on a terminal: progress bars, tables, sentences."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.bar import Bar
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from ragboost.batch.forecast import Forecast, ForecastPoint
from ragboost.batch.job import BatchSummary
from ragboost.batch.requests import Progress as ProgressFunction

_BAR = 24
_ORDERS = (("plain", "unchanged"), ("online", "ordered online"), ("planned", "planned as a batch"))

ESTIMATED = (
    "Token counts are estimated: name the model's tokenizer (tokens.tokenizer) for a forecast in "
    "its own tokens."
)
"""The first line of a forecast without a tokenizer."""


@contextmanager
def progress_bar(is_shown: bool | None) -> Iterator[ProgressFunction]:
    """Yield a function that draws a bar per stage on standard error; None: if it is a terminal."""
    console = Console(stderr=True)
    is_shown = console.is_terminal if is_shown is None else is_shown
    columns = (TextColumn("{task.description:<9}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not is_shown) as progress:
        tasks: dict[str, TaskID] = {}

        def move(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = progress.add_task(stage, total=total)
            progress.update(tasks[stage], completed=done, total=total)

        yield move


def summary_table(summary: BatchSummary) -> Table:
    capacity = "unbounded" if summary.cache_tokens is None else f"{summary.cache_tokens:,} tokens"
    table = Table(title=f"Predicted prefix cache ({capacity})", title_justify="left")
    for heading in ("", "before", "after"):
        table.add_column(heading, justify="right" if heading else "left")
    before, after = summary.before, summary.after
    table.add_row("document tokens", f"{before.prompt_tokens:,}", f"{after.prompt_tokens:,}")
    table.add_row("cached tokens", f"{before.cached_tokens:,}", f"{after.cached_tokens:,}")
    table.add_row("hit rate", f"{before.hit_rate:.1%}", f"{after.hit_rate:.1%}")
    return table


def summary_sentence(summary: BatchSummary) -> str:
    blank = f", {summary.blank_removed:,} without text removed" if summary.blank_removed else ""
    return (
        f"{summary.requests:,} requests written, {summary.requests_reordered:,} with another "
        f"document order, {summary.duplicates_removed:,} of {summary.documents:,} documents "
        f"removed as duplicates{blank}"
    )


def forecast_table(forecast: Forecast) -> Table:
    table = Table(title="Predicted hit rate by size of the prefix cache", title_justify="left")
    table.add_column("cache, tokens", justify="right")
    table.add_column("trace")
    table.add_column("hit rate", justify="right")
    table.add_column("0 %".ljust(_BAR - 5) + "100 %", width=_BAR)
    for point in forecast.points:
        for name, label in _ORDERS:
            rate = getattr(point, name)
            size = _size(point) if name == "plain" else ""
            bar = Bar(1.0, 0.0, rate, width=_BAR)
            table.add_row(size, label, f"{rate:.1%}", bar, end_section=name == "planned")
    return table


def forecast_sentence(forecast: Forecast) -> str:
    point = forecast.points[len(forecast.points) // 2]
    how = "counted" if forecast.is_counted else "estimated"
    ignored = f", {forecast.rejected:,} malformed lines skipped" if forecast.rejected else ""
    return (
        f"{forecast.requests:,} requests, {forecast.documents:,} documents, "
        f"{forecast.document_tokens:,} document tokens ({how}){ignored}. With a cache of "
        f"{_size(point)} tokens RAGBoost would compute {_saved(point, point.online):.1%} fewer "
        f"document tokens online, {_saved(point, point.planned):.1%} fewer planned as a batch."
    )


def _size(point: ForecastPoint) -> str:
    return "unbounded" if point.cache_tokens is None else f"{point.cache_tokens:,}"


def _saved(point: ForecastPoint, rate: float) -> float:
    return (rate - point.plain) / (1 - point.plain) if point.plain < 1 else 0.0
