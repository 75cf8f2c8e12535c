"""Put a framework's own objects into a Booster's order, each with its label and rank, or into the
`ragboost` object that its OpenAI client sends to the proxy beside the messages.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from ragboost.booster.booster import Booster
from ragboost.requests.formats.ragboost_object import FIELD
from ragboost.types import Document

T = TypeVar("T")

_MAX_NAME = 16


@dataclass(frozen=True, slots=True)
class PlacedDocument(Generic[T]):
    value: T
    label: str  # its label in hints, such as `[Doc_7]`
    rank: int  # its position in relevance order, from 0
    duplicates: tuple[T, ...] = ()  # less relevant objects with the same text, which it replaces


@dataclass(frozen=True, slots=True)
class Placement(Generic[T]):
    placed: tuple[PlacedDocument[T], ...]
    blank: tuple[T, ...]  # objects without text, which are not ordered
    hint: str  # the order hint; empty if nothing moved


def named_document(text: str, *, name: object = None) -> Document:
    """Return a Document for a framework's text, with its name as id if that has up to 16
    characters.

    Longer names, such as the UUIDs of vector stores, are not worth their tokens in the prompt.
    """
    short = isinstance(name, str) and 0 < len(name) <= _MAX_NAME
    return Document(text, id=name if short and isinstance(name, str) else None)


def place(
    booster: Booster,
    query: str,
    values: Sequence[T],
    *,
    as_document: Callable[[T], Document | None],
) -> Placement[T]:
    """Order and de-duplicate objects at the front of a prompt; blank ones become no document."""
    documents = [as_document(value) for value in values]
    texts = [(rank, document) for rank, document in enumerate(documents) if document is not None]
    context = booster.boost(query, [document for _, document in texts])
    ranks: dict[int, list[int]] = {}
    for (rank, _), position in zip(texts, context.positions, strict=True):
        ranks.setdefault(position, []).append(rank)
    placed = tuple(
        PlacedDocument(
            values[ranks[position][0]],
            label,
            ranks[position][0],
            tuple(values[rank] for rank in ranks[position][1:]),
        )
        for position, label in enumerate(context.labels)
    )
    blank = tuple(v for v, document in zip(values, documents, strict=True) if document is None)
    return Placement(placed, blank, "\n".join(hint.text for hint in context.hints))


def best(values: Sequence[T], k: int, *, identity: Callable[[T], str]) -> list[T]:
    """Return the `k` most relevant distinct objects, with their duplicates."""
    kept: list[T] = []
    seen: set[str] = set()
    for value in values:
        name = identity(value)
        if name in seen or len(seen) < k:
            seen.add(name)
            kept.append(value)
    return kept


def ragboost_body(
    documents: Iterable[Document | None], *, session_id: str | None = None
) -> dict[str, Any]:
    """Return an extra body with the `ragboost` object; documents that are None are skipped."""
    objects: list[dict[str, Any]] = []
    for document in documents:
        if document is not None:
            names = {"id": document.id, "title": document.title}
            given = {name: value for name, value in names.items() if value is not None}
            objects.append({**given, "text": document.text})
    session = {} if session_id is None else {"session_id": session_id}
    return {FIELD: {"documents": objects, **session}}
