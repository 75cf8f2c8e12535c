"""Read triplets from JSONL and CSV files, and from LangChain's graph documents or any object that
has `relationships` with `source.id`, `type` and `target.id`."""

import csv
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from ragboost.errors import RequestError
from ragboost.graph.triplets import Triplet, as_triplet
from ragboost.util.jsonl import decode, read_lines

_NAMES = (
    ("head", "relation", "tail"),
    ("subject", "predicate", "object"),
    ("source", "type", "target"),
)


def read_triplets(path: Path | str) -> Iterator[Triplet]:
    """Yield the triplets of a file: lines of `.jsonl` are `[head, relation, tail]` or objects with
    these keys, or `subject, predicate, object` or `source, type, target`; `.csv` and `.tsv` have
    three columns, or a header with these names. Raises `RequestError`, which names the line."""
    path = Path(path)
    if path.suffix == ".jsonl":
        yield from _jsonl(path)
    elif path.suffix in (".csv", ".tsv"):
        yield from _table(path)
    else:
        raise RequestError(f"{path} must end in .jsonl, .csv or .tsv", param="path")


def triplets_from_langchain(documents: Iterable[Any]) -> Iterator[Triplet]:
    for i, document in enumerate(documents):
        for j, relationship in enumerate(_field(document, "relationships") or ()):
            head, tail = (_field(_field(relationship, name), "id") for name in ("source", "target"))
            # Ids may be numbers; relation types are written like HAS_PART.
            parts = (_text(head), _words(_field(relationship, "type")), _text(tail))
            yield as_triplet(parts, where=f"documents[{i}].relationships[{j}]")


def _jsonl(path: Path) -> Iterator[Triplet]:
    for line in read_lines(path):
        value = decode(line.raw, where=line.where)
        if isinstance(value, dict):
            names = next((names for names in _NAMES if all(n in value for n in names)), _NAMES[0])
            value = [value.get(name) for name in names]
        yield as_triplet(value, where=line.where)


def _table(path: Path) -> Iterator[Triplet]:
    columns: list[int] | None = None
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, delimiter="\t" if path.suffix == ".tsv" else ",")
            for row in reader:
                if not any(cell.strip() for cell in row):
                    continue
                where = f"{path}:{reader.line_num}"
                if columns is None:
                    columns = _header(row)
                    if columns is not None:
                        continue
                    columns = [0, 1, 2]
                if len(row) <= max(columns):
                    raise RequestError(f"{where} must have head, relation and tail, got {row!r}")
                yield as_triplet([row[column] for column in columns], where=where)
    except csv.Error as error:
        raise RequestError(f"{path}:{reader.line_num}: {error}") from None
    except UnicodeDecodeError as error:
        raise RequestError(f"{path}: not UTF-8 at byte {error.start + 1}") from None
    except OSError as error:
        raise RequestError(f"cannot read {path}: {error.strerror}") from None


def _header(row: list[str]) -> list[int] | None:
    cells = [cell.strip().casefold() for cell in row]
    for names in _NAMES:
        if all(name in cells for name in names):
            return [cells.index(name) for name in names]
    return None


def _field(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else getattr(value, name, None)


def _text(value: Any) -> Any:
    return str(value) if isinstance(value, int) else value


def _words(value: Any) -> Any:
    if isinstance(value, str) and value.isupper():
        return value.replace("_", " ").lower()
    return value
