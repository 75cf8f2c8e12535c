"""LlamaIndex's `OpenAILike` through the proxy, over real sockets."""

from itertools import pairwise
from typing import Any

import pytest

from tests.environments import needs, own_environment

needs("llama_index.llms.openai_like")  # which needs openai below 3

from httpx import AsyncClient
from llama_index.core.base.llms.types import ChatMessage, MessageRole
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.retrievers import BaseRetriever
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
from llama_index.llms.openai_like import OpenAILike

from ragboost.integrations.llama_index import BoostChatEngine, BoostPostprocessor, extra_body
from tests.fakes import FakeEngine
from tests.fakes.proxy import ProxyServer
from tests.integrations.corpus import FIRST, SECOND, TEXTS, num_copies, words

pytestmark = own_environment
FINDS = {"first": FIRST, "second": SECOND, "again": ("rent", "parking")}


class Shelf(BaseRetriever):
    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return nodes(*FINDS[query_bundle.query_str])


def nodes(*names: str) -> list[NodeWithScore]:
    return [NodeWithScore(node=TextNode(text=TEXTS[name], id_=name)) for name in names]


def make_llm(proxy: ProxyServer, **options: Any) -> OpenAILike:
    return OpenAILike(
        model="fake-model",
        api_base=f"{proxy.url}/v1",
        api_key="unused",
        is_chat_model=True,
        context_window=32_768,
        max_retries=0,
        **options,
    )


@pytest.fixture
def llm(proxy: ProxyServer, own_loop: None) -> OpenAILike:
    return make_llm(proxy)


def test_a_query_engine_answers_with_a_shared_prefix(engine: FakeEngine, llm: OpenAILike) -> None:
    queries = RetrieverQueryEngine.from_args(
        Shelf(), llm=llm, node_postprocessors=[BoostPostprocessor()]
    )
    queries.query("first")

    answer = queries.query("second")

    assert len(str(answer).split()) == 4
    assert words(engine.completions[-1].prompt) == ["lease", "pets", "parking"]
    assert engine.completions[-1].cached_tokens > 200


def check_conversation(engine: FakeEngine) -> None:
    prompts = [request.prompt for request in engine.completions]
    assert len(prompts) == 3
    assert num_copies(prompts[-1]) == dict.fromkeys(("lease", "rent", "pets", "parking"), 1)
    assert all("ragboost" not in request.body.decode() for request in engine.completions)
    for earlier, later in pairwise(engine.completions):
        assert later.cached_tokens >= earlier.prompt_tokens - 32


def test_a_chat_engine_sends_documents_once(engine: FakeEngine, llm: OpenAILike) -> None:
    chat = BoostChatEngine(Shelf(), llm, system_prompt="Be brief.")

    for question in FINDS:
        chat.chat(question)

    check_conversation(engine)


async def test_a_chat_engine_streams(engine: FakeEngine, proxy: ProxyServer) -> None:
    async with AsyncClient() as client:
        chat = BoostChatEngine(Shelf(), make_llm(proxy, async_http_client=client))

        assert len("".join(chat.stream_chat("first").response_gen).split()) == 4
        stream = await chat.astream_chat("second")
        pieces = [piece async for piece in stream.async_response_gen()]
        assert len("".join(pieces).split()) == 4
        await chat.achat("again")

    check_conversation(engine)


def test_documents_go_to_the_proxy_beside_the_messages(engine: FakeEngine, llm: OpenAILike) -> None:
    history: list[ChatMessage] = []
    for question, names in FINDS.items():
        history.append(ChatMessage(role=MessageRole.USER, content=question))
        body = extra_body(nodes(*names), session_id="user-42")
        history.append(llm.chat(history, extra_body=body).message)

    check_conversation(engine)


def test_the_stock_query_engine_is_boosted_at_once(engine: FakeEngine, llm: OpenAILike) -> None:
    """Its default template, with nodes as its directory reader makes them."""

    class Files(BaseRetriever):
        def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
            found = nodes(*FINDS[query_bundle.query_str])
            for at, hit in enumerate(found):
                hit.node.metadata = {"file_path": f"{hit.node.node_id}.txt"}
                if hit.node.node_id == "rent":
                    hit.node.metadata["page_label"] = f"{at}"
            return found

    queries = RetrieverQueryEngine.from_args(Files(), llm=llm)
    for name in ("first", "second"):
        queries.query(name)
        sent = str(engine.requests[-1].json["messages"][-1]["content"])
        assert num_copies(sent) == dict.fromkeys(FINDS[name], 1)
    assert engine.requests[-1].cached_tokens > 0.3 * engine.requests[-1].prompt_tokens
