"""What the commands of all benchmarks share: the parser, and results as JSON or as tables."""

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console
from rich.table import Table

from ragboost.config.model_directory import find_model
from ragboost.errors import ConfigError

Result = TypeVar("Result")


def make_parser(doc: str | None) -> argparse.ArgumentParser:
    """Return a parser with `--json`, whose help is the module's docstring."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def model_directory(name: str) -> Path:
    """Return the directory of the model that an option names, for argparse, which prints why there
    is none."""
    try:
        return find_model(Path(name))
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def report(result: Result, args: argparse.Namespace, show: Callable[[Result], object]) -> None:
    """Print one JSON object, or let `show` print tables."""
    if args.json:
        print(json.dumps(result))
    else:
        show(result)


def show_figures(figures: Mapping[str, Any]) -> None:
    print(*figures.items(), sep="\n")


def show_rows(rows: Sequence[Mapping[str, Any]], title: str | None = None) -> None:
    """Print a table with a row for each mapping; the first one names the columns."""
    table = Table(title=title)
    for at, name in enumerate(rows[0]):
        table.add_column(name.replace("_", " "), no_wrap=at == 0)
    for row in rows:
        table.add_row(*(f"{v:,}" if isinstance(v, int) else str(v) for v in row.values()))
    Console().print(table)


def show_columns(columns: Mapping[str, Mapping[str, Any]], title: str | None = None) -> None:
    """Print a table with a column for each mapping, and a row for each of the first one's keys."""
    table = Table("", *columns, title=title)
    for name in next(iter(columns.values())):
        table.add_row(name, *(str(column[name]) for column in columns.values()))
    Console().print(table)
