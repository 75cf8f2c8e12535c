"""The `ragboost` object that a framework's OpenAI client sends to the proxy beside the messages."""

from collections.abc import Iterable
from typing import Any

from ragboost.requests.formats.ragboost_object import FIELD
from ragboost.types import Document


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
