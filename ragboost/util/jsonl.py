"""Read JSON Lines files, one value a line, errors named by file and line."""

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from ragboost.errors import RequestError, json_type


class Line(NamedTuple):
    where: str  # path and line number, for messages
    number: int  # the line number, from 1
    raw: bytes  # its bytes; never blank


def read_lines(path: Path, *, max_bytes: int | None = None) -> Iterator[Line]:
    """Yield the non-blank lines of a `.jsonl` or `.jsonl.gz` file, cut behind `max_bytes + 1`."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            for number, raw in enumerate(_bounded(file, max_bytes), 1):
                if raw.strip():
                    yield Line(f"{path}:{number}", number, raw)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise RequestError(f"{path} is not a complete gzip file: {error}") from None
    except OSError as error:
        raise RequestError(f"cannot read {path}: {error.strerror}") from None


def _bounded(file: gzip.GzipFile | BinaryIO, max_bytes: int | None) -> Iterator[bytes]:
    if max_bytes is None:
        yield from file
        return
    while line := file.readline(max_bytes + 1):
        yield line
        while line and not line.endswith(b"\n"):  # skip the rest of a long one
            line = file.readline(max_bytes + 1)


def decode(raw: bytes, *, where: str = "") -> Any:
    """Decode a line, whose place is `where`. Lone surrogates are accepted, as engines do."""
    prefix = f"{where}: " if where else ""
    try:
        return json.loads(raw.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise RequestError(f"{prefix}not UTF-8 at byte {error.start + 1}") from None
    except RecursionError:
        raise RequestError(f"{prefix}nested too deeply") from None
    except json.JSONDecodeError as error:  # its own line number is not that of the file
        raise RequestError(f"{prefix}not JSON: {error.msg} at character {error.pos + 1}") from None
    except ValueError as error:
        raise RequestError(f"{prefix}not JSON: {error}") from None


def json_value(text: str | bytes) -> Any:
    """Return the value of a JSON text; None if it is none, or nested too deeply."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def read_objects(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the objects of a file, each with its place for messages."""
    for line in read_lines(path):
        row = decode(line.raw, where=line.where)
        if not isinstance(row, dict):
            raise RequestError(f"{line.where}: must be an object, got {json_type(row)}")
        yield line.where, row
