"""Hand documents over to the proxy: what `ChatOpenAI(base_url=...)` sends beside the messages."""

from collections.abc import Sequence
from typing import Any

from langchain_core.documents import Document as LangChainDocument

from ragboost.integrations.handing_over import ragboost_body
from ragboost.integrations.langchain.documents import as_document


def extra_body(
    documents: Sequence[LangChainDocument], *, session_id: str | None = None
) -> dict[str, Any]:
    """The `extra_body` of a call: `llm.bind(extra_body=extra_body(documents))`.

    The proxy puts the documents into the last user message, ordered and with hints.

    Args:
        documents: most relevant first; blank ones are left out.
        session_id: names the conversation, where its history alone does not.
    """
    return ragboost_body(map(as_document, documents), session_id=session_id)
