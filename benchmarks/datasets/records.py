"""Read the records of a data set's file, and parse what can be parsed."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from ragboost.errors import RequestError, json_type
from ragboost.util.jsonl import Line, decode, read_lines

T = TypeVar("T")


def parse_records(
    records: Iterable[tuple[str, Any]], parse: Callable[[Any], Iterable[T]]
) -> tuple[list[T], list[str]]:
    """Return what the records hold, and the errors of malformed ones, which are skipped."""
    parsed: list[T] = []
    problems: list[str] = []
    for where, row in records:
        try:
            if isinstance(row, RequestError):
                raise row
            parsed.extend(list(parse(row)))
        except RequestError as error:
            problems.append(f"{where}: {error}")
        except (AttributeError, KeyError, TypeError) as error:
            problems.append(f"{where}: a field is missing or of another type: {error!r}")
    return parsed, problems


def read_records(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield the records of a file with their places; an error in place of an unreadable one."""
    lines = list(read_lines(path))
    if not lines:
        return
    try:
        value = decode(b"\n".join(line.raw for line in lines))
    except RequestError as error:
        if lines[0].raw.lstrip()[:1] not in b"[{":
            raise RequestError(f"{path}:1: {error}") from None
        yield from ((line.where, _decoded(line)) for line in lines)
        return
    if isinstance(value, list):
        yield from ((f"{path}[{at}]", _object(row)) for at, row in enumerate(value))
    else:
        yield str(path) if len(lines) > 1 else lines[0].where, _object(value)


def _decoded(line: Line) -> Any:
    try:
        return _object(decode(line.raw))
    except RequestError as error:
        return error


def _object(value: Any) -> Any:
    if isinstance(value, dict):
        return value
    return RequestError(f"must be an object, got {json_type(value)}")
