"""LlamaIndex nodes in a Booster's order, with labels and the order hint in their content, and a
node postprocessor, the last one of a query engine.

The label becomes a line of metadata, the hint the end of the last node's template.
"""

from collections.abc import Sequence
from typing import Any

import llama_index.core.instrumentation as instrument
from llama_index.core.bridge.pydantic import Field
from llama_index.core.instrumentation.events.rerank import ReRankEndEvent, ReRankStartEvent
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import BaseNode, MetadataMode, NodeWithScore, QueryBundle

from ragboost.booster.booster import Booster
from ragboost.integrations.placement import PlacedDocument, named_document, place, ragboost_body
from ragboost.types import Document

KEY = "ragboost"
DUPLICATES = "ragboost_duplicates"
RANK = "ragboost_rank"


def as_document(node: NodeWithScore) -> Document | None:
    text = node.node.get_content(metadata_mode=MetadataMode.LLM)
    return named_document(text, name=node.node.node_id) if text.strip() else None


def boosted_nodes(
    booster: Booster, query: str, nodes: Sequence[NodeWithScore]
) -> list[NodeWithScore]:
    """Return ordered and de-duplicated copies of nodes; those without text come last.

    Their metadata has the label under `ragboost`, visible to the model, and hidden from it the
    rank under `ragboost_rank` and the ids of nodes with the same text under
    `ragboost_duplicates`. Nodes that were boosted before are
    returned unchanged.
    """
    if any(KEY in node.node.metadata for node in nodes):
        return list(nodes)
    placement = place(booster, query, nodes, as_document=as_document)
    last = len(placement.placed) - 1
    copies = [
        _copy(placed, hint=placement.hint if at == last else "")
        for at, placed in enumerate(placement.placed)
    ]
    return [*copies, *placement.blank]


def by_relevance(nodes: Sequence[NodeWithScore]) -> list[NodeWithScore]:
    """Return boosted nodes, such as a response's `source_nodes`, in the order of the retriever.

    Others come last, in the order given, whatever their metadata say.
    """

    def rank(node: NodeWithScore) -> int:
        found = node.node.metadata.get(RANK)
        return found if KEY in node.node.metadata and isinstance(found, int) else len(nodes)

    return sorted(nodes, key=rank)


def extra_body(nodes: Sequence[NodeWithScore], *, session_id: str | None = None) -> dict[str, Any]:
    """Return the `extra_body` of a call through the proxy: `llm.chat(messages, extra_body=...)`.

    The proxy puts the documents, most relevant first, into the last user message, ordered and with
    hints; those of earlier turns of `session_id` are not sent again.
    """
    return ragboost_body(map(as_document, nodes), session_id=session_id)


def _copy(placed: PlacedDocument[NodeWithScore], *, hint: str) -> NodeWithScore:
    node: BaseNode = placed.value.node
    hidden = [RANK]
    metadata: dict[str, Any] = {KEY: placed.label, **node.metadata, RANK: placed.rank}
    if placed.duplicates:
        metadata[DUPLICATES] = [duplicate.node.node_id for duplicate in placed.duplicates]
        hidden.append(DUPLICATES)
    changed: dict[str, Any] = {
        "metadata": metadata,
        "excluded_llm_metadata_keys": [*node.excluded_llm_metadata_keys, *hidden],
        "excluded_embed_metadata_keys": [*node.excluded_embed_metadata_keys, KEY, *hidden],
    }
    template = getattr(node, "text_template", None)
    if hint and template is not None:
        changed["text_template"] = template + "\n\n" + hint.replace("{", "{{").replace("}", "}}")
    return placed.value.model_copy(update={"node": node.model_copy(update=changed)})


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
