"""LangChain documents in a Booster's order, with `metadata["ragboost"]`."""

from collections.abc import Sequence
from typing import Any

from langchain_core.documents import Document as LangChainDocument

from ragboost.booster.booster import Booster
from ragboost.integrations.extra_body import ragboost_body
from ragboost.integrations.placement import Placed, named_document, place
from ragboost.types import Document

KEY = "ragboost"


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
    documents: Sequence[LangChainDocument], *, session_id: str | None = None
) -> dict[str, Any]:
    """Return the `extra_body` of a call: `llm.bind(extra_body=extra_body(documents))`.

    The proxy puts the documents, most relevant first, into the last user message, ordered and with
    hints; those of earlier turns of `session_id` are not sent again.
    """
    return ragboost_body(map(as_document, documents), session_id=session_id)


def _copy(placed: Placed[LangChainDocument]) -> LangChainDocument:
    facts: dict[str, Any] = {"label": placed.label, "rank": placed.rank}
    if placed.duplicates:
        facts["duplicates"] = [dict(document.metadata) for document in placed.duplicates]
    document = placed.value
    return document.model_copy(update={"metadata": {**document.metadata, KEY: facts}})
