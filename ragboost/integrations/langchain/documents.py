"""LangChain documents in a Booster's order, with `metadata["ragboost"]`."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Any

from langchain_core.documents import Document as LangChainDocument

from ragboost.booster.booster import Booster
from ragboost.integrations.extra_body import ragboost_body
from ragboost.integrations.placement import PlacedDocument, named_document, place
from ragboost.types import Document

KEY = "ragboost"
_MAX_SHOWN = 200  # characters of a value


def as_document(document: LangChainDocument) -> Document | None:
    if not document.page_content.strip():
        return None
    return named_document(document.page_content, name=document.id)


def boosted_documents(
    booster: Booster, query: str, documents: Sequence[LangChainDocument]
) -> list[LangChainDocument]:
    """Return ordered and de-duplicated copies of documents; blank ones come last.

    `metadata["ragboost"]` has `label` and `rank` (from 0) of each; `duplicates`, the metadata of
    the documents with the same text; and on the last one `hint`, the order hint, if the order
    changed.
    """
    placement = place(booster, query, documents, as_document=as_document)
    copies = [_copy(placed) for placed in placement.placed]
    if copies and placement.hint:
        copies[-1].metadata[KEY]["hint"] = placement.hint
    return [*copies, *placement.blank]


def extra_body(
    documents: Sequence[LangChainDocument],
    *,
    session_id: str | None = None,
    show: Sequence[str] = ("title", "source"),
) -> dict[str, Any]:
    """Return the `extra_body` of a call: `llm.bind(extra_body=extra_body(documents))`.

    The proxy puts the documents, most relevant first, into the last user message, ordered and with
    hints; those of earlier turns of `session_id` are not sent again. `show` names the metadata that
    the model reads above a text, so that it can cite it; longer values than 200 characters are left
    out. Equal texts with other metadata are two documents.
    """
    titled = [_titled(as_document(document), document.metadata, show) for document in documents]
    return ragboost_body(titled, session_id=session_id)


def _titled(
    document: Document | None, metadata: Mapping[str, Any], show: Sequence[str]
) -> Document | None:
    values = [metadata.get(name) for name in show]
    texts = [" ".join(str(v).split()) for v in values if isinstance(v, str | int | PurePath)]
    title = ", ".join([text for text in dict.fromkeys(texts) if 0 < len(text) <= _MAX_SHOWN])
    return replace(document, title=title) if document is not None and title else document


def _copy(placed: PlacedDocument[LangChainDocument]) -> LangChainDocument:
    facts: dict[str, Any] = {"label": placed.label, "rank": placed.rank}
    if placed.duplicates:
        facts["duplicates"] = [dict(document.metadata) for document in placed.duplicates]
    document = placed.value
    return document.model_copy(update={"metadata": {**document.metadata, KEY: facts}})
