"""Read JSONL files of objects, one a line, and say where a line that is none stands.

Knows files and lines. Does not know what the objects mean.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ragboost.errors import RequestError


class Line(NamedTuple):
    """An object of a file.

    Attributes:
        where: path and line, for messages.
        row: the object.
    """

    where: str
    row: dict[str, Any]


def read_objects(path: Path) -> Iterator[Line]:
    """Yield the objects of a file. Blank lines are skipped; only line ends end a line, so texts may
    hold any other separator.

    Raises:
        RequestError: the file cannot be read, or a line is no object; the message names both.
    """
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    where = f"{path}:{number}"
                    yield Line(where, _object(line, where))
    except OSError as error:
        raise RequestError(f"cannot read {path}: {error.strerror}") from None


def _object(line: bytes, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise RequestError(f"{where}: not UTF-8 at byte {error.start + 1}") from None
    except (ValueError, RecursionError) as error:
        raise RequestError(f"{where}: not valid JSON: {error}") from None
    if not isinstance(row, dict):
        raise RequestError(f"{where}: must be an object, got {type(row).__name__}")
    return row
