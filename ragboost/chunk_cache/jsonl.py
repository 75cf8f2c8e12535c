"""Read JSONL files of objects, with errors that name the file and line."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ragboost.errors import RequestError


class Line(NamedTuple):
    """An object of a file.

    Attributes:
        where: path and line number, for messages.
        row: the object.
    """

    where: str
    row: dict[str, Any]


def read_objects(path: Path) -> Iterator[Line]:
    """Yield the objects of a file, skipping blank lines.

    Raises:
        RequestError: the file cannot be read, or a line is not an object; the message names both.
    """
    try:
        with path.open("rb") as lines:  # bytes: other separators than \n may occur in texts
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
