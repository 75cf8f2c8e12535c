"""Readers of question files, one file per data set, and their registry.

Each file has `matches(row)`, which recognises the format by its first record, and
`parse(row, pools)`.
"""

from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Any, Protocol, cast

from benchmarks.datasets.pools import Pools, RawQuestion
from ragboost.errors import RequestError

Row = Mapping[str, Any]

FORMATS = (
    "mtrag",
    "multihop-rag",
    "musique",
    "2wiki",
    "hotpotqa",
    "narrativeqa",
    "qasper",
)
"""In the order in which they are tried."""
_MODULES = {"multihop-rag": "multihop_rag", "2wiki": "two_wiki"}


class QuestionFormat(Protocol):
    def matches(self, row: Row) -> bool:
        """Return True if a file's first record is of this format."""

    def parse(self, row: Row, pools: Pools) -> Iterable[RawQuestion]:
        """Yield the questions of a record, and add its documents to a pool."""


def question_format(name: str) -> QuestionFormat:
    if name not in FORMATS:
        raise RequestError(f"--format must be one of {', '.join(FORMATS)}, got {name!r}")
    module = import_module(f"benchmarks.datasets.loaders.{_MODULES.get(name, name)}")
    return cast(QuestionFormat, module)


def recognised(row: Row) -> str | None:
    return next((name for name in FORMATS if question_format(name).matches(row)), None)
