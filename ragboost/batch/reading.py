"""Read a file of requests into a catalog, line by line."""

from collections.abc import Callable
from typing import BinaryIO

from ragboost.batch.catalog import DocumentCatalog
from ragboost.batch.lines import LineParser
from ragboost.errors import RagBoostError

Progress = Callable[[str, int, int], None]
"""Called with the stage, what is done of it, and the whole."""

Rejected = Callable[[int, bytes, RagBoostError], object]
"""Called with the number of a malformed line, the line, and what is wrong with it."""

_EVERY = 64  # lines between two reports of progress


def read_requests(
    source: BinaryIO,
    catalog: DocumentCatalog,
    *,
    parser: LineParser,
    on_rejected: Rejected,
    on_progress: Progress,
) -> int:
    """Fill a catalog; returns the number of malformed lines. Blank lines are skipped."""
    total = source.seek(0, 2)
    source.seek(0)
    rejected = offset = 0
    for number, raw in enumerate(source, 1):
        try:
            if raw.strip():
                catalog.add(parser.parse(raw), number=number, offset=offset)
        except RagBoostError as error:
            rejected += 1
            on_rejected(number, raw, error)
        offset += len(raw)
        if number % _EVERY == 0 or offset == total:
            on_progress("reading", offset, total)
    return rejected
