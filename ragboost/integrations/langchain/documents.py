"""LangChain documents in a Booster's order, with `metadata["ragboost"]`, and as text of a prompt.

A block contains its own label and text only, so that equal leading documents have equal bytes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from numbers import Integral
from pathlib import PurePath
from typing import Any
from uuid import UUID

from langchain_core.documents import Document as LangChainDocument
from langchain_core.prompts import StringPromptTemplate, format_document

from ragboost.booster.booster import Booster
from ragboost.integrations.placement import PlacedDocument, named_document, place, ragboost_body
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
    texts = [
        " ".join(str(v).split()) for v in values if isinstance(v, str | Integral | PurePath | UUID)
    ]
    title = ", ".join([text for text in dict.fromkeys(texts) if 0 < len(text) <= _MAX_SHOWN])
    return replace(document, title=title) if document is not None and title else document


def _copy(placed: PlacedDocument[LangChainDocument]) -> LangChainDocument:
    facts: dict[str, Any] = {"label": placed.label, "rank": placed.rank}
    if placed.duplicates:
        facts["duplicates"] = [dict(document.metadata) for document in placed.duplicates]
    document = placed.value
    return document.model_copy(update={"metadata": {**document.metadata, KEY: facts}})


class DocumentPrompt(StringPromptTemplate):
    """A `document_prompt` for chains and tools that render documents themselves.

    For `create_stuff_documents_chain` and `create_retriever_tool`, after a `BoostRetriever` or a
    `BoostCompressor`: the label, the text, and after the last document the order hint. With
    `PromptTemplate` as `template`, the text is in the application's own format.
    """

    input_variables: list[str] = ["page_content", KEY]  # noqa: RUF012
    template: StringPromptTemplate | None = None  # of `page_content` and metadata; None: the text

    def model_post_init(self, _context: Any) -> None:
        if self.template is not None:
            self.input_variables = sorted({*self.template.input_variables, KEY})

    def format(self, **kwargs: Any) -> str:
        facts = kwargs.pop(KEY)
        text = kwargs["page_content"] if self.template is None else self.template.format(**kwargs)
        return _block(text, facts)

    @property
    def _prompt_type(self) -> str:
        return "ragboost-document"


def format_documents(
    documents: Sequence[LangChainDocument], template: StringPromptTemplate | None = None
) -> str:
    """Write boosted documents for a `{context}` variable: `retriever | format_documents`.

    `template` is the application's format of a document, from `page_content` and metadata.
    """
    return "\n\n".join(
        _block(
            document.page_content if template is None else format_document(document, template),
            document.metadata.get(KEY, {}),
        )
        for document in documents
    )


def _block(text: str, facts: dict[str, Any]) -> str:
    lines = [facts["label"], text] if "label" in facts else [text]
    return "\n".join(lines) + (f"\n\n{facts['hint']}" if "hint" in facts else "")
