"""A retriever that wraps another one."""

from llama_index.core.callbacks import CallbackManager
from llama_index.core.retrievers import BaseRetriever
from llama_index.core.schema import NodeWithScore, QueryBundle

from ragboost.booster.booster import Booster
from ragboost.integrations.llama_index.nodes import boosted_nodes


class BoostNodeRetriever(BaseRetriever):
    """Return another retriever's nodes in the order that reuses the prefix cache, each text once.

    For engines without node postprocessors; otherwise use `BoostPostprocessor`. One booster serves
    all engines of a backend and model.
    """

    def __init__(
        self,
        base_retriever: BaseRetriever,
        *,
        booster: Booster | None = None,
        callback_manager: CallbackManager | None = None,
    ) -> None:
        self._base_retriever = base_retriever
        self._booster = booster or Booster()
        super().__init__(callback_manager=callback_manager)

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        nodes = self._base_retriever.retrieve(query_bundle)
        return boosted_nodes(self._booster, query_bundle.query_str, nodes)

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        nodes = await self._base_retriever.aretrieve(query_bundle)
        return boosted_nodes(self._booster, query_bundle.query_str, nodes)
