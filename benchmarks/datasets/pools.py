"""Questions as the files of data sets have them, and the documents to retrieve for them from."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ragboost.types import Document


class RawQuestion(NamedTuple):
    """A question as a file has it."""

    id: str  # as in the file; empty if it has none
    text: str
    answers: tuple[str, ...]
    # Most relevant first; empty: to be retrieved from the pool.
    documents: tuple[Document, ...] = ()
    pool: str = ""  # names the documents to retrieve from
    conversation: str | None = None  # its conversation, or None


class Pools:
    """The documents from which questions are answered, by pool; equal texts are one document."""

    def __init__(self) -> None:
        self._pools: dict[str, dict[tuple[str, str], Document]] = {}

    def add(self, pool: str, text: str, *, title: str = "", id: str | None = None) -> Document:  # noqa: A002
        """Add a document, named by its position unless it has an id; return it."""
        documents = self._pools.setdefault(pool, {})
        key = (title, text)
        if key not in documents:
            documents[key] = Document(
                text, id=str(len(documents)) if id is None else id, title=title or None
            )
        return documents[key]

    def has(self, pool: str) -> bool:
        return pool in self._pools

    def documents(self, pool: str) -> Sequence[Document]:
        """Return the documents of a pool in the order in which they were added."""
        return list(self._pools.get(pool, {}).values())


def chunked(text: str, *, words: int = 200) -> Iterable[str]:
    """Yield a long text in pieces of so many words."""
    parts = text.split()
    for at in range(0, len(parts), words):
        yield " ".join(parts[at : at + words])
