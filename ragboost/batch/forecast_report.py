"""Show a forecast: a table with bars for the terminal, a sentence, a plot as a file."""

from pathlib import Path

from rich.bar import Bar
from rich.table import Table

from ragboost.batch.forecast import Forecast, ForecastPoint
from ragboost.plots import line_plot

_BAR = 24
_ORDERS = (("plain", "as it is"), ("online", "ordered online"), ("planned", "planned as a batch"))


def forecast_table(forecast: Forecast) -> Table:
    """A row for each size and order of requests, with a bar as long as the hit rate."""
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
    """What was replayed, and the gain at the middle size."""
    point = forecast.points[len(forecast.points) // 2]
    ignored = f", {forecast.rejected:,} malformed lines left out" if forecast.rejected else ""
    return (
        f"{forecast.requests:,} requests, {forecast.documents:,} documents, "
        f"{forecast.document_tokens:,} document tokens (estimated){ignored}. With a cache of "
        f"{_size(point)} tokens RAGBoost would compute {_saved(point, point.online):.1%} fewer "
        f"document tokens online, {_saved(point, point.planned):.1%} fewer planned as a batch."
    )


def write_plot(forecast: Forecast, path: Path) -> None:
    """Draw hit rate against cache size.

    Args:
        forecast: what to draw; the unbounded cache stands at the right end.
        path: a .png or .svg.

    Raises:
        MissingExtraError: matplotlib is not installed.
        RequestError: another kind of file, or it cannot be written.
    """
    lines = {
        label: [(at, 100 * getattr(point, name)) for at, point in enumerate(forecast.points)]
        for name, label in _ORDERS
    }
    line_plot(
        path,
        lines,
        x_label="prefix cache, tokens",
        y_label="hit rate, %",
        y_top=100,
        x_ticks=[_size(point) for point in forecast.points],
    )


def _size(point: ForecastPoint) -> str:
    return "unbounded" if point.cache_tokens is None else f"{point.cache_tokens:,}"


def _saved(point: ForecastPoint, rate: float) -> float:
    """Share of the tokens that are computed today that would not be computed."""
    return (rate - point.plain) / (1 - point.plain) if point.plain < 1 else 0.0
