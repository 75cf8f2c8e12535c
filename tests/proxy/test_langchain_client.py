"""LangChain's `ChatOpenAI` against the proxy: the application changes its `base_url` only."""

import base64
from typing import Any

import openai
import pytest
from pydantic import SecretStr

from tests.fakes import FakeEngine
from tests.fakes.proxy import ProxyServer

pytest.importorskip("langchain_openai", reason="needs the extra dev")

from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

DOCUMENTS = [f"<document>Paper {i} tells of {i}. {'And more. ' * 20}</document>" for i in range(3)]


@pytest.fixture
def model(proxy: ProxyServer) -> ChatOpenAI:
    return chat(proxy)


def chat(proxy: ProxyServer, **fields: Any) -> ChatOpenAI:
    url, key = f"{proxy.url}/v1", SecretStr("key")
    return ChatOpenAI(model="m", base_url=url, api_key=key, max_retries=0, **fields)


@tool
def search(query: str) -> str:
    """Find something."""
    return f"nothing about {query}"


def test_an_answer_parses_and_shows_cached_tokens(model: ChatOpenAI, engine: FakeEngine) -> None:
    for order in ((0, 1, 2), (2, 0, 1)):
        documents = "\n".join(DOCUMENTS[i] for i in order)
        answer = model.invoke([HumanMessage(f"{documents}\nWhat do they tell?")])
    assert answer.text
    assert answer.usage_metadata is not None
    assert answer.usage_metadata["input_tokens"] == engine.requests[-1].prompt_tokens
    cached = answer.usage_metadata["input_token_details"]["cache_read"]
    assert cached == engine.requests[-1].cached_tokens > 100


def test_a_stream_parses(model: ChatOpenAI) -> None:
    chunks = list(model.stream([HumanMessage("why?")]))
    assert "".join(str(chunk.text) for chunk in chunks)


async def test_asynchronous_calls_work(model: ChatOpenAI) -> None:
    assert (await model.ainvoke([HumanMessage("why?")])).text


def test_a_tool_is_called_and_its_result_passes(model: ChatOpenAI, engine: FakeEngine) -> None:
    question = HumanMessage("find it")
    said = model.bind_tools([search], tool_choice="required").invoke([question])
    assert isinstance(said, AIMessage)
    (call,) = said.tool_calls
    assert call["name"] == "search"
    result = ToolMessage(search.invoke(call["args"]), tool_call_id=call["id"] or "")
    model.bind_tools([search]).invoke([question, said, result])
    roles = [message["role"] for message in engine.requests[-1].json["messages"]]
    assert roles == ["user", "assistant", "tool"]
    assert engine.requests[-1].json["messages"][2]["content"].startswith("nothing about")


def test_an_image_passes(model: ChatOpenAI, engine: FakeEngine) -> None:
    url = "data:image/png;base64," + base64.b64encode(b"no image").decode()
    content: list[Any] = [
        {"type": "text", "text": "what is it?"},
        {"type": "image_url", "image_url": {"url": url}},
    ]
    assert model.invoke([HumanMessage(content)]).text
    assert engine.requests[-1].json["messages"][0]["content"] == content


def test_documents_in_the_extra_body_are_boosted(proxy: ProxyServer, engine: FakeEngine) -> None:
    ours = {"ragboost": {"documents": ["Ada signed.", "Bob did not."]}}
    assert chat(proxy, extra_body=ours).invoke([HumanMessage("who?")]).text
    assert "Ada signed." in engine.requests[-1].prompt
    assert "ragboost" not in engine.requests[-1].json


def test_an_error_of_the_backend_raises_the_right_class(
    model: ChatOpenAI, engine: FakeEngine
) -> None:
    engine.misbehave(status=429)
    with pytest.raises(openai.RateLimitError):
        model.invoke([HumanMessage("why?")])
    assert len(engine.requests) == 1
