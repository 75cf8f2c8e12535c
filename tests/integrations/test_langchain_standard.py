"""LangChain's own standard tests for retrievers."""

from typing import Any

from tests.environments import needs, own_environment

needs("langchain_tests")  # which brings six plugins of pytest

from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableLambda
from langchain_tests.integration_tests import RetrieversIntegrationTests

from ragboost.integrations.langchain import BoostRetriever
from tests.integrations.corpus import TEXTS

pytestmark = own_environment


class TestBoostRetriever(RetrieversIntegrationTests):
    @property
    def retriever_constructor(self) -> type[BaseRetriever]:
        return BoostRetriever

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        documents = [Document(page_content=text) for text in TEXTS.values()]
        return {"base_retriever": RunnableLambda(lambda _query: documents)}

    @property
    def retriever_query_example(self) -> str:
        return "Who signed the lease?"
