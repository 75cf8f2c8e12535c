"""Questions with documents and right answers, as an evaluation asks them.

Knows documents. Does not know files, settings or endpoints.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ragboost.errors import RequestError
from ragboost.types import Document


@dataclass(frozen=True, slots=True)
class EvalQuestion:
    id: str  # unique in the file
    text: str
    documents: tuple[Document, ...]  # most relevant first; not empty
    # Right answers; the first one is the assistant's message in later turns.
    answers: tuple[str, ...]
    conversation: str | None = None  # its conversation; None: it stands alone


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


def text_of(row: Mapping[str, object], *names: str) -> str:
    """Return the first of these fields that is present; it must be a non-empty text."""
    value = next((row[name] for name in names if row.get(name) is not None), None)
    if not isinstance(value, str) or not value.strip():
        raise RequestError(f"{names[0]} must be a non-empty string", param=names[0])
    return value


def answers_of(value: object) -> tuple[str, ...]:
    """Return answers given as a text, a number or a list of them, without blank ones."""
    values = value if isinstance(value, list | tuple) else [value]
    answers = [
        str(entry).strip() for entry in values if entry is not None and not isinstance(entry, dict)
    ]
    if not any(answers):
        raise RequestError("the right answer is missing", param="answers")
    return tuple(dict.fromkeys(answer for answer in answers if answer))


def chunked(text: str, *, words: int = 200) -> Iterable[str]:
    """Yield a long text in pieces of so many words."""
    parts = text.split()
    for at in range(0, len(parts), words):
        yield " ".join(parts[at : at + words])
