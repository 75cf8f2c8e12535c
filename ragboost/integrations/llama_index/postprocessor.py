"""A node postprocessor that orders and de-duplicates; the last one of a query engine."""

import llama_index.core.instrumentation as instrument
from llama_index.core.bridge.pydantic import Field
from llama_index.core.instrumentation.events.rerank import ReRankEndEvent, ReRankStartEvent
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import NodeWithScore, QueryBundle

from ragboost.booster.booster import Booster
from ragboost.integrations.llama_index.nodes import boosted_nodes

_dispatcher = instrument.get_dispatcher(__name__)  # type: ignore[attr-defined]


class BoostPostprocessor(BaseNodePostprocessor):
    """Put nodes into the order that reuses the prefix cache, each text once.

    It must be the last of `node_postprocessors`, since reordering its nodes undoes it. Emits the
    events of a reranker.
    """

    # One per backend and model, shared by all engines that use them.
    booster: Booster = Field(default_factory=Booster, exclude=True)

    @classmethod
    def class_name(cls) -> str:
        return "BoostPostprocessor"

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        query = query_bundle or QueryBundle("")
        start = ReRankStartEvent(
            query=query, nodes=nodes, top_n=len(nodes), model_name=self.class_name()
        )
        _dispatcher.event(start)
        boosted = boosted_nodes(self.booster, query.query_str, nodes)
        _dispatcher.event(ReRankEndEvent(nodes=boosted))
        return boosted
