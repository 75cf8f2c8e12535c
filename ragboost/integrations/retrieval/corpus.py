"""Read a corpus from JSONL: one document a line, `{"id", "title", "text"}`, also gzipped."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, overload

from ragboost.errors import RequestError, json_type, show
from ragboost.types import Document, DocumentId, as_document
from ragboost.util.jsonl import decode, read_lines


class Corpus(Sequence[Document]):
    """Documents in file order with unique ids: `1` and `"1"` differ, `1` and `1.0` do not."""

    def __init__(self, documents: Sequence[Document]) -> None:
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
        documents: list[Document] = []
        lines: dict[object, int] = {}
        for line in read_lines(Path(path)):
            document = as_document(decode(line.raw, where=line.where), where=line.where)
            if document.id is not None:
                first = lines.setdefault(_id_key(document.id), line.number)
                if first != line.number:
                    raise RequestError(
                        f"{line.where}: id {document.id!r} is used on line {first} already",
                        param="id",
                    )
            documents.append(document)
        return cls(documents)

    def find(self, document_id: DocumentId) -> Document | None:
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


def find_documents(corpus: Corpus | None, doc_ids: Any) -> tuple[Document, ...]:
    """Return the documents of a JSON list of ids. Raises `RequestError`."""
    if not isinstance(doc_ids, list):
        raise RequestError(f"doc_ids must be a list, got {json_type(doc_ids)}", param="doc_ids")
    if corpus is None and doc_ids:
        raise RequestError("doc_ids need a corpus: give it with --corpus", param="doc_ids")
    documents = []
    for i, doc_id in enumerate(doc_ids):
        where = f"doc_ids[{i}]"
        if isinstance(doc_id, list | dict):
            raise RequestError(f"{where} must be a JSON scalar", param=where)
        document = corpus.find(doc_id) if corpus is not None else None
        if document is None:
            raise RequestError(f"{where}: {show(doc_id)} is not in the corpus", param=where)
        documents.append(document)
    return tuple(documents)


def _id_key(document_id: DocumentId) -> object:
    # To Python True equals 1; to JSON it does not.
    return (bool, document_id) if isinstance(document_id, bool) else document_id
