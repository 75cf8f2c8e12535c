"""The `documents` field of a chat request, also in `chat_template_kwargs` (SGLang).

Its elements are moved, never changed; those without text are left out. The chat template renders
them above the messages and labels them: the order hint names them by title if all differ, else by
position ("document 3").
"""

import json
from collections.abc import Mapping, Sequence
from operator import is_
from typing import Any

from ragboost.booster.context import Context
from ragboost.config import HintSettings
from ragboost.errors import InvalidDocumentError, json_type
from ragboost.hints import order_hint
from ragboost.requests.formats.documents import (
    FoundDocuments,
    TooManyDocumentsError,
    UnknownShapeError,
)
from ragboost.requests.formats.groups import hint_name
from ragboost.requests.wires.body import find_question, message_field, replace_question
from ragboost.types import Document, is_blank

_NAMES = ("id", "doc_id", "title", "score", "metadata")  # beside the text of an element
_TEXTS = ("text", "data", "content", "page_content")


class DocumentsField:
    """The `documents` field of the body or of one of its objects.

    Args:
        parent: the object of the body that holds the field; None for the body itself.
    """

    name = "documents_field"
    in_message = False
    in_place = False
    is_ours = False

    def __init__(
        self, hints: HintSettings, *, max_documents: int, parent: str | None = None
    ) -> None:
        self._hints = hints
        self._max_documents = max_documents
        self._parent = parent

    def extract(
        self, body: Mapping[str, Any], *, tenant: str = "", learns: bool = True
    ) -> FoundDocuments | None:
        documents = self._holder(body).get("documents")
        if documents is None or documents == [] or not message_field(body):
            return None
        if not isinstance(documents, list):
            raise UnknownShapeError(f"documents must be a list, got {json_type(documents)}")
        if len(documents) > self._max_documents:
            raise TooManyDocumentsError(len(documents), self._max_documents)
        _check_citations(body, documents)
        question = find_question(body)
        if question is None:
            raise UnknownShapeError("documents without a user message")
        blank = tuple([at for at, value in enumerate(documents) if _is_blank(value)])
        if len(blank) == len(documents):
            return None
        found = tuple([_as_document(value) for value in _without(documents, blank)])
        return FoundDocuments(question[0], found, question[1], blank=blank)

    def replace(
        self, body: Mapping[str, Any], found: FoundDocuments, context: Context
    ) -> dict[str, Any]:
        moved = self._moved(body, found, context)
        if moved is None:
            return dict(body)
        new = {**body, "documents": moved}
        if self._parent is not None:
            new = {**body, self._parent: {**body[self._parent], "documents": moved}}
        hint = self._order_hint(moved, context)
        if hint is None:
            return new
        return replace_question(new, f"{hint}\n\n{found.query}", message=found.message)

    def note(self, body: Mapping[str, Any], found: FoundDocuments, context: Context) -> str:
        moved = self._moved(body, found, context)
        return (self._order_hint(moved, context) if moved is not None else None) or ""

    def _moved(
        self, body: Mapping[str, Any], found: FoundDocuments, context: Context
    ) -> list[Any] | None:
        """Return the elements in another order; None if they stay as they are."""
        documents = self._holder(body)["documents"]
        originals: dict[str, Any] = {}
        given = _without(documents, found.blank)
        for document, value in zip(found.documents, given, strict=True):
            originals.setdefault(document.key, value)
        moved = [originals[document.key] for document in context.documents]
        is_same = len(moved) == len(documents) and all(map(is_, moved, documents))
        return None if is_same else moved

    def _holder(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        holder = body if self._parent is None else body.get(self._parent)
        return holder if isinstance(holder, dict) else {}

    def _order_hint(self, moved: Sequence[Any], context: Context) -> str | None:
        places: dict[str, int] = {}  # of equal documents, the first
        for at, document in enumerate(context.documents):
            places.setdefault(document.key, at)
        by_relevance = list(dict.fromkeys(places[document.key] for document in context.retrieved))
        if not (self._hints.order and context.is_order_hinted):
            return None
        hint = order_hint(_labels(moved), by_relevance, template=self._hints.order_template)
        return None if hint is None else hint.text


def _as_document(value: Any) -> Document:
    """Convert an element; two are equal only if every chat template renders them the same."""
    try:
        if isinstance(value, str):
            return Document(value)
        if not isinstance(value, dict) or not _has_text(value):
            raise UnknownShapeError("documents holds an element without text")
        text, title = value.get("text"), value.get("title")
        if len(value) == 2 and isinstance(text, str) and isinstance(title, str):
            return Document(text, title=title)
        return Document(json.dumps(value, ensure_ascii=False))
    except InvalidDocumentError as error:
        raise UnknownShapeError(f"documents: {error}") from None


def _is_blank(value: Any) -> bool:
    """Return True for an element in which every chat template would find nothing to render but
    names."""
    if not isinstance(value, dict):
        return is_blank(value)
    data = value.get("data")
    fields = {**value, **(data if isinstance(data, dict) else {"data": data})}
    return not set(_TEXTS).isdisjoint(value) and all(
        is_blank(field) or field is None for name, field in fields.items() if name not in _NAMES
    )


def _without(documents: Sequence[Any], blank: Sequence[int]) -> list[Any]:
    left_out = frozenset(blank)
    return [value for at, value in enumerate(documents) if at not in left_out]


def _check_citations(body: Mapping[str, Any], documents: Sequence[Any]) -> None:
    is_cohere = "citation_options" in body or any(
        isinstance(value, dict) and "data" in value for value in documents
    )
    if not is_cohere:
        return
    for value in documents:
        if not isinstance(value, dict) or value.get("id") is None:
            raise UnknownShapeError(
                "documents without an id: citations would name them by position"
            )


def _has_text(value: dict[str, Any]) -> bool:
    return any(isinstance(value.get(name), str | dict) and value[name] for name in _TEXTS)


def _labels(documents: Sequence[Any]) -> list[str]:
    titles = [hint_name(_title(document)) for document in documents]
    if all(titles) and len(set(titles)) == len(titles):
        return titles
    return [f"document {at}" for at in range(1, len(documents) + 1)]


def _title(document: Any) -> Any:
    if not isinstance(document, dict):
        return None
    fields = document if "title" in document else document.get("data")
    return fields.get("title") if isinstance(fields, dict) else None
