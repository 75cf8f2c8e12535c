"""LlamaIndex components in engines built the ordinary way."""

from itertools import pairwise
from typing import Any

import pytest

pytest.importorskip("llama_index.core", reason="comes with the dev extra")

import llama_index.core.instrumentation as instrument
from llama_index.core import get_response_synthesizer
from llama_index.core.base.llms.types import ChatMessage, MessageRole
from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.llms import CompletionResponse, CustomLLM, LLMMetadata
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.retrievers import BaseRetriever
from llama_index.core.schema import ImageNode, MetadataMode, NodeWithScore, QueryBundle, TextNode

from ragboost import Booster, Settings
from ragboost.config import HintSettings
from ragboost.integrations.llama_index import (
    BoostChatEngine,
    BoostPostprocessor,
    by_relevance,
    extra_body,
)
from tests.integrations.corpus import FIRST, SECOND, TEXTS, num_copies, words

FINDS = {"first": FIRST, "second": SECOND, "again": ("rent", "parking")}


class Shelf(BaseRetriever):
    """Finds what FINDS says, in new nodes."""

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return nodes(*FINDS[query_bundle.query_str])


class Recorder(CustomLLM):
    """Answers "yes" and keeps its prompts."""

    asked: list[str] = []  # noqa: RUF012
    is_broken: bool = False

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata(context_window=100_000, model_name="recorder")

    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        self.asked.append(prompt)
        if self.is_broken:
            raise ConnectionError("no")
        return CompletionResponse(text="yes")

    def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> Any:
        self.asked.append(prompt)
        yield CompletionResponse(text="y", delta="y")
        yield CompletionResponse(text="yes", delta="es")


def nodes(*names: str, **metadata: Any) -> list[NodeWithScore]:
    return [
        NodeWithScore(node=TextNode(text=TEXTS[name], id_=name, metadata=metadata), score=1 / at)
        for at, name in enumerate(names, 1)
    ]


def texts(found: list[NodeWithScore]) -> list[str]:
    return words([node.get_content() for node in found])


def engine_of(llm: Recorder, *postprocessors: Any) -> RetrieverQueryEngine:
    return RetrieverQueryEngine.from_args(
        Shelf(), llm=llm, node_postprocessors=list(postprocessors)
    )


@pytest.mark.parametrize("mode", ["compact", "tree_summarize"])
def test_a_query_engine_shares_the_prefix_and_tells_the_relevance_order(mode: str) -> None:
    llm = Recorder(asked=[])
    engine = RetrieverQueryEngine(
        Shelf(),
        response_synthesizer=get_response_synthesizer(llm=llm, response_mode=mode),
        node_postprocessors=[BoostPostprocessor()],
    )
    engine.query("first")

    answer = engine.query("second")

    assert str(answer) == "yes"
    assert texts(answer.source_nodes) == ["lease", "pets", "parking"]
    assert texts(by_relevance(answer.source_nodes)) == ["pets", "parking", "lease"]
    assert "ragboost_rank" not in "".join(llm.asked)
    first, second = llm.asked
    start = first[: first.index(TEXTS["lease"].strip()) + len(TEXTS["lease"].strip())]
    assert start.endswith(f"ragboost: [Doc_lease]\n\n{TEXTS['lease'].strip()}")
    assert second.startswith(start)
    assert "by relevance" not in first
    assert "[Doc_pets] >> [Doc_parking] >> [Doc_lease]" in second


def test_nodes_that_were_not_boosted_come_last_whatever_their_metadata_say() -> None:
    boosted = BoostPostprocessor().postprocess_nodes(nodes(*FIRST), query_str="first")
    first, second = nodes("rent", "pets", ragboost_rank="first")

    assert by_relevance([first, *boosted, second]) == [*boosted, first, second]


async def test_a_query_engine_works_asynchronously() -> None:
    engine = engine_of(Recorder(asked=[]), BoostPostprocessor())
    await engine.aquery("first")

    answer = await engine.aquery("second")

    assert texts(answer.source_nodes) == ["lease", "pets", "parking"]


def test_scores_texts_and_metadata_are_kept_and_the_originals_untouched() -> None:
    boost = BoostPostprocessor()
    boost.postprocess_nodes(nodes(*FIRST, page=3), query_str="first")
    given = nodes(*SECOND, page=3)

    boosted = boost.postprocess_nodes(given, query_str="second")

    assert given == nodes(*SECOND, page=3)
    assert [(n.node_id, n.score) for n in boosted] == [
        ("lease", 1 / 3),
        ("pets", 1.0),
        ("parking", 0.5),
    ]
    assert [n.get_content() for n in boosted] == [TEXTS[n.node_id] for n in boosted]
    assert all(n.metadata["page"] == 3 for n in boosted)
    assert "ragboost" not in boosted[0].node.get_content(MetadataMode.EMBED)


def test_equal_texts_under_two_ids_are_sent_once() -> None:
    ids = [f"6fdb2cbd-9bcf-4a2c-9ee7-2f3c9b9a2a1{digit}" for digit in range(2)]
    given = [NodeWithScore(node=TextNode(text="Same.", id_=each)) for each in ids]

    (node,) = BoostPostprocessor().postprocess_nodes(given)

    assert node.node_id == ids[0]
    assert node.metadata["ragboost_duplicates"] == [ids[1]]
    assert ids[1] not in node.node.get_content(MetadataMode.LLM)


def test_braces_in_a_hint_are_no_placeholders() -> None:
    settings = Settings(hints=HintSettings(order_template="{order} {x}"))
    boost = BoostPostprocessor(booster=Booster(settings))
    boost.postprocess_nodes(nodes(*FIRST))

    last = boost.postprocess_nodes(nodes(*SECOND))[-1]

    assert last.node.get_content(MetadataMode.LLM).endswith("[Doc_lease] {x}")


def test_nodes_without_text_come_last() -> None:
    image = NodeWithScore(node=ImageNode(image="AA=="))

    assert BoostPostprocessor().postprocess_nodes([image, *nodes(*FIRST)])[-1] is image


def test_no_nodes_are_no_nodes() -> None:
    assert BoostPostprocessor().postprocess_nodes([], query_str="q") == []


def test_the_events_of_a_reranker_are_emitted() -> None:
    seen: list[Any] = []

    class Handler(BaseEventHandler):
        def handle(self, event: Any, **kwargs: Any) -> None:
            seen.append(event)

    dispatcher = instrument.get_dispatcher()  # the root, to which all events go up
    handler = Handler()
    dispatcher.add_event_handler(handler)
    boost = BoostPostprocessor()
    boost.postprocess_nodes(nodes(*FIRST), query_str="first")
    seen.clear()
    boost.postprocess_nodes(nodes(*SECOND), query_str="second")
    dispatcher.event_handlers.remove(handler)

    start, end = seen
    assert start.class_name() == "ReRankStartEvent"
    assert start.query.query_str == "second"
    assert (start.top_n, start.model_name) == (3, "BoostPostprocessor")
    assert texts(start.nodes) == ["pets", "parking", "lease"]
    assert texts(end.nodes) == ["lease", "pets", "parking"]


async def test_nodes_are_boosted_once_also_without_blocking() -> None:
    boost = BoostPostprocessor()
    await boost.apostprocess_nodes(nodes(*FIRST), query_str="first")
    found = await boost.apostprocess_nodes(nodes(*SECOND), query_str="second")

    assert texts(found) == ["lease", "pets", "parking"]
    assert BoostPostprocessor().postprocess_nodes(found) == found


def test_the_body_for_the_proxy_names_the_session() -> None:
    body = extra_body(nodes("lease", page=3), session_id="s")

    text = f"page: 3\n\n{TEXTS['lease'].strip()}"
    documents = [{"id": "lease", "text": text}]
    assert body == {"ragboost": {"documents": documents, "session_id": "s"}}


def check_conversation(asked: list[str]) -> None:
    """Each turn extends the one before, with its answer, and sends no document twice."""
    for earlier, later in pairwise(asked):
        assert later.startswith(f"{earlier}yes")
    assert num_copies(asked[-1]) == dict.fromkeys(("lease", "rent", "pets", "parking"), 1)
    assert "Please refer to [Doc_rent] in the previous conversation." in asked[-1]


def test_a_chat_engine_keeps_documents_in_the_history() -> None:
    llm = Recorder(asked=[])
    engine = BoostChatEngine(Shelf(), llm, system_prompt="Be brief.")

    answers = [engine.chat(question) for question in FINDS]

    check_conversation(llm.asked)
    assert [str(answer) for answer in answers] == ["yes"] * 3
    assert texts(answers[2].source_nodes) == ["rent", "parking"]


async def test_a_chat_engine_works_asynchronously() -> None:
    llm = Recorder(asked=[])
    engine = BoostChatEngine(Shelf(), llm)

    for question in FINDS:
        await engine.achat(question)

    check_conversation(llm.asked)


async def test_a_chat_engine_streams() -> None:
    llm = Recorder(asked=[])
    engine = BoostChatEngine(Shelf(), llm)

    assert "".join(engine.stream_chat("first").response_gen) == "yes"
    stream = await engine.astream_chat("second")
    assert "".join([piece async for piece in stream.async_response_gen()]) == "yes"
    engine.chat("again")

    check_conversation(llm.asked)


def test_a_chat_engine_forgets_when_reset_or_given_a_history() -> None:
    llm = Recorder(asked=[])
    engine = BoostChatEngine(Shelf(), llm)
    engine.chat("first")
    engine.reset()
    engine.chat("first")
    assert llm.asked[1] == llm.asked[0]

    plain = [ChatMessage(role=MessageRole.USER, content="Hello.")]
    engine.chat("second", chat_history=plain)

    assert words(llm.asked[-1]) == ["pets", "parking", "lease"]
    assert len(engine.chat_history) == 3


def test_a_turn_that_failed_is_not_remembered() -> None:
    llm = Recorder(asked=[])
    engine = BoostChatEngine(Shelf(), llm)
    llm.is_broken = True
    with pytest.raises(ConnectionError):
        engine.chat("first")
    llm.is_broken = False

    engine.chat("first")

    assert llm.asked[1] == llm.asked[0]
    assert len(engine.chat_history) == 2
