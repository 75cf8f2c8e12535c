"""A retriever that wraps another one, and a compressor for contextual compression retrievers."""

from collections.abc import Sequence
from typing import Any

from langchain_core.callbacks import (
    AsyncCallbackManagerForRetrieverRun,
    CallbackManagerForRetrieverRun,
    Callbacks,
)
from langchain_core.documents import BaseDocumentCompressor
from langchain_core.documents import Document as LangChainDocument
from langchain_core.retrievers import BaseRetriever, RetrieverLike
from pydantic import ConfigDict, Field

from ragboost.booster.booster import Booster
from ragboost.integrations.langchain.documents import as_document, boosted_documents
from ragboost.integrations.placement import best


class BoostRetriever(BaseRetriever):
    """Return another retriever's documents in the order that reuses the prefix cache, each once."""

    base_retriever: RetrieverLike  # returns documents most relevant first
    # One per backend and model, shared by all chains that use them.
    booster: Booster = Field(default_factory=Booster)
    # Number of distinct documents to keep, most relevant first; None for all. Also an argument of
    # `invoke`.
    k: int | None = Field(default=None, ge=1)

    def _get_relevant_documents(
        self,
        query: str,
        *,
        run_manager: CallbackManagerForRetrieverRun,
        k: int | None = None,
        **kwargs: Any,
    ) -> list[LangChainDocument]:
        config: Any = {"callbacks": run_manager.get_child()}
        return self._boosted(query, self.base_retriever.invoke(query, config=config, **kwargs), k)

    async def _aget_relevant_documents(
        self,
        query: str,
        *,
        run_manager: AsyncCallbackManagerForRetrieverRun,
        k: int | None = None,
        **kwargs: Any,
    ) -> list[LangChainDocument]:
        config: Any = {"callbacks": run_manager.get_child()}
        found = await self.base_retriever.ainvoke(query, config=config, **kwargs)
        return self._boosted(query, found, k)

    def _boosted(
        self, query: str, documents: list[LangChainDocument], k: int | None
    ) -> list[LangChainDocument]:
        k = self.k if k is None else k
        if k is not None:
            documents = best(documents, k, identity=_identity)
        return boosted_documents(self.booster, query, documents)


def _identity(document: LangChainDocument) -> str:
    converted = as_document(document)
    return converted.key if converted else ""


class BoostCompressor(BaseDocumentCompressor):
    """Put documents into the order that reuses the prefix cache, each once.

    It must run last, since reordering its documents undoes it. `format_documents` and
    `DocumentPrompt` write them with their labels and the order hint.
    """

    # One per backend and model, shared by all chains that use them.
    booster: Booster = Field(default_factory=Booster)

    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid")

    def compress_documents(
        self, documents: Sequence[LangChainDocument], query: str, callbacks: Callbacks | None = None
    ) -> Sequence[LangChainDocument]:
        return boosted_documents(self.booster, query, documents)
