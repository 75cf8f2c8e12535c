"""Read a corpus from JSONL: one document a line, `{"id", "title", "text"}`, also gzipped.

Knows files and documents. Does not know retrieval.
"""

import gzip
import json
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import overload

from ragboost.errors import InvalidDocumentError, RequestError
from ragboost.types import Document, DocumentId, as_document


class Corpus(Sequence[Document]):
    """Documents in file order, found by id.

    Ids are unique where they are given. `1` and `"1"` are different ids, `1` and `1.0` the same.
    """

    def __init__(self, documents: Sequence[Document]) -> None:
        """Raises RequestError if two documents have the same id."""
        self._documents = tuple(documents)
        self._position: dict[object, int] = {}
        for i, document in enumerate(self._documents):
            if document.id is None:
                continue
            first = self._position.setdefault(_id_key(document.id), i)
            if first != i:
                raise RequestError(
                    f"documents {first} and {i} of the corpus have the same id {document.id!r}",
                    param=f"corpus[{i}].id",
                )

    @classmethod
    def read(cls, path: Path | str) -> "Corpus":
        """Read `.jsonl` or `.jsonl.gz`. Blank lines are skipped.

        Raises:
            RequestError: the file cannot be read, or a line is no document or repeats an id; the
                message names file and line.
        """
        documents: list[Document] = []
        lines: dict[object, int] = {}
        for number, line in _lines(Path(path)):
            document = _document(line, where=f"{path}:{number}")
            if document.id is not None:
                first = lines.setdefault(_id_key(document.id), number)
                if first != number:
                    raise RequestError(
                        f"{path}:{number}: id {document.id!r} stands on line {first} already",
                        param="id",
                    )
            documents.append(document)
        return cls(documents)

    def find(self, document_id: DocumentId) -> Document | None:
        """The document with this id; None if there is none."""
        position = self._position.get(_id_key(document_id))
        return None if position is None else self._documents[position]

    @overload
    def __getitem__(self, index: int) -> Document: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Document]: ...
    def __getitem__(self, index: int | slice) -> Document | Sequence[Document]:
        return self._documents[index]

    def __len__(self) -> int:
        return len(self._documents)


def _id_key(document_id: DocumentId) -> object:
    # To Python True equals 1; to JSON it does not.
    return (bool, document_id) if isinstance(document_id, bool) else document_id


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield number, line
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise RequestError(f"{path} is not a complete gzip file: {error}") from None
    except OSError as error:
        raise RequestError(f"cannot read {path}: {error.strerror}") from None


def _document(line: bytes, *, where: str) -> Document:
    try:
        return as_document(json.loads(line.decode("utf-8-sig")), where=where)
    except UnicodeDecodeError as error:
        raise RequestError(f"{where}: not UTF-8 at byte {error.start + 1}") from None
    except RecursionError:
        raise RequestError(f"{where}: nested too deeply") from None
    except InvalidDocumentError:
        raise
    except ValueError as error:
        raise RequestError(f"{where}: not JSON: {error}") from None
