"""Write boosted documents into a prompt, with their labels and the order hint.

A block contains its own label and text only, so that equal leading documents have equal bytes.
"""

from collections.abc import Sequence
from typing import Any

from langchain_core.documents import Document as LangChainDocument
from langchain_core.prompts import StringPromptTemplate, format_document

from ragboost.integrations.langchain.documents import KEY


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
