"""Write boosted documents into a prompt, with their labels and the order hint.

A document's block contains its own label and text only, so that equal leading documents have equal
bytes.
"""

from collections.abc import Sequence
from typing import Any

from langchain_core.documents import Document as LangChainDocument
from langchain_core.prompts import StringPromptTemplate

from ragboost.integrations.langchain.documents import KEY


class DocumentPrompt(StringPromptTemplate):
    """A `document_prompt` for chains and tools that render documents themselves.

    For `create_stuff_documents_chain` and `create_retriever_tool`, after a `BoostRetriever` or a
    `BoostCompressor`: the label, the text, and after the last document the order hint.
    """

    input_variables: list[str] = ["page_content", KEY]  # noqa: RUF012

    def format(self, **kwargs: Any) -> str:
        return _block(kwargs["page_content"], kwargs[KEY])

    @property
    def _prompt_type(self) -> str:
        return "ragboost-document"


def format_documents(documents: Sequence[LangChainDocument]) -> str:
    """Write boosted documents for a `{context}` variable: `retriever | format_documents`.

    Documents that were not boosted are written without a label.
    """
    return "\n\n".join(
        _block(document.page_content, document.metadata.get(KEY, {})) for document in documents
    )


def _block(text: str, facts: dict[str, Any]) -> str:
    lines = [facts["label"], text] if "label" in facts else [text]
    return "\n".join(lines) + (f"\n\n{facts['hint']}" if "hint" in facts else "")
