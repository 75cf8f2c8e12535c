"""Pass documents from `ChatOpenAI(base_url=...)` to the proxy."""

from collections.abc import Sequence
from typing import Any

from langchain_core.documents import Document as LangChainDocument

from ragboost.integrations.extra_body import ragboost_body
from ragboost.integrations.langchain.documents import as_document


def extra_body(
    documents: Sequence[LangChainDocument], *, session_id: str | None = None
) -> dict[str, Any]:
    """Return the `extra_body` of a call: `llm.bind(extra_body=extra_body(documents))`.

    The proxy puts the documents, most relevant first, into the last user message, ordered and with
    hints; those of earlier turns of `session_id` are not sent again.
    """
    return ragboost_body(map(as_document, documents), session_id=session_id)
