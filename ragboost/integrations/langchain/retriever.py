"""A retriever that wraps another one."""

from typing import Any

from langchain_core.callbacks import (
    AsyncCallbackManagerForRetrieverRun,
    CallbackManagerForRetrieverRun,
)
from langchain_core.documents import Document as LangChainDocument
from langchain_core.retrievers import BaseRetriever, RetrieverLike
from pydantic import Field

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
