"""Agents with `BoostMiddleware`, whose model answers over a real socket."""

import json
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

pytest.importorskip("langchain_openai", reason="comes with the dev extra")

from langchain.agents import create_agent
from langchain.agents.middleware import ModelRequest, ModelResponse
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import BaseTool, tool
from langchain_openai import ChatOpenAI

from ragboost.config import Settings
from ragboost.integrations.langchain import BoostMiddleware
from tests.fakes import FakeEngine
from tests.fakes.proxy import ProxyServer
from tests.integrations.corpus import FIRST, SECOND, TEXTS, num_copies

FINDS = {"one": FIRST, "two": SECOND}
REFERENCE = 'Please refer to the document that begins with "Lease is described here.'


def search_tool(asks: Callable[[str], None]) -> BaseTool:
    """A tool that returns documents as LangChain's retriever tool does."""

    @tool(response_format="content_and_artifact")
    def search(query: str) -> tuple[str, list[Document]]:
        """Find documents."""
        asks(query)
        documents = [Document(page_content=TEXTS[name]) for name in FINDS[query]]
        return "\n\n".join(document.page_content for document in documents), documents

    return search


def call_search(engine: FakeEngine, query: str) -> None:
    """Let the engine's next answer be a call of the tool."""
    arguments = json.dumps({"query": query})
    call = {"id": f"call-{query}", "type": "function"}
    message = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{**call, "function": {"name": "search", "arguments": arguments}}],
    }
    choice = {"index": 0, "finish_reason": "tool_calls", "message": message}
    answer = {"id": "c", "object": "chat.completion", "created": 0, "model": "fake-model"}
    engine.misbehave(status=200, body=json.dumps({**answer, "choices": [choice]}).encode())


def make_agent(engine: FakeEngine, url: str, **options: Any) -> Any:
    """An agent that searches for "one", then "two", and then answers."""

    def asks(query: str) -> None:
        if query == "one":
            call_search(engine, "two")
        else:
            engine.behave()

    model = ChatOpenAI(base_url=f"{url}/v1", api_key="unused", model="fake-model", max_retries=0)
    call_search(engine, "one")
    return create_agent(model, [search_tool(asks)], system_prompt="Search first.", **options)


QUESTION = {"messages": [{"role": "user", "content": "Who signed?"}]}


def check_steps(engine: FakeEngine) -> None:
    """Each document was sent once, and each step extends the one before."""
    prompts = [request.prompt for request in engine.completions]
    assert len(prompts) == 3
    assert num_copies(prompts[-1]) == dict.fromkeys(("lease", "rent", "pets", "parking"), 1)
    assert REFERENCE in prompts[-1]
    for earlier, later in pairwise(prompts):
        assert later.startswith(earlier.removesuffix("<|assistant|>\n"))


def test_an_agent_is_sent_each_document_once(engine: FakeEngine) -> None:
    agent = make_agent(engine, engine.url, middleware=[BoostMiddleware()])

    state = agent.invoke(QUESTION)

    check_steps(engine)
    kept = [message.text for message in state["messages"] if isinstance(message, ToolMessage)]
    assert list(num_copies(kept[1])) == ["lease", "pets", "parking"]


async def test_an_agent_that_runs_asynchronously_is_sent_each_document_once(
    engine: FakeEngine,
) -> None:
    agent = make_agent(engine, engine.url, middleware=[BoostMiddleware()])

    await agent.ainvoke(QUESTION)

    check_steps(engine)


def test_an_agent_works_through_the_proxy(engine: FakeEngine, proxy: ProxyServer) -> None:
    agent = make_agent(engine, proxy.url, middleware=[BoostMiddleware()])

    agent.invoke(QUESTION)

    check_steps(engine)


def test_without_the_middleware_documents_are_sent_twice(engine: FakeEngine) -> None:
    make_agent(engine, engine.url).invoke(QUESTION)

    assert num_copies(engine.completions[-1].prompt)["lease"] == 2


def seen_by_model(messages: list[Any], settings: Settings | None = None) -> list[Any]:
    """What the model is asked with."""
    seen: list[Any] = []

    def handler(request: ModelRequest[Any]) -> ModelResponse[Any]:
        seen.extend(request.messages)
        return ModelResponse(result=[AIMessage("yes")])

    request: ModelRequest[Any] = ModelRequest(
        model=ChatOpenAI(api_key="unused", model="m"),
        messages=messages,
        system_message=SystemMessage("Search first."),
    )
    BoostMiddleware(settings).wrap_model_call(request, handler)
    return seen


def xml(*names: str) -> str:
    return "\n".join(f'<document id="{name}">{TEXTS[name]}</document>' for name in names)


def test_documents_are_found_by_their_marks_where_there_is_no_artifact() -> None:
    messages = [
        HumanMessage(xml("lease", "rent")),
        AIMessage("", tool_calls=[{"name": "search", "args": {}, "id": "1"}]),
        ToolMessage(xml("pets", "lease"), tool_call_id="1"),
    ]

    seen = seen_by_model(messages)

    assert seen[:2] == messages[:2]
    assert seen[2].text.startswith('<document id="pets">Pets is described')
    assert f'<document id="lease">{REFERENCE}' in seen[2].text


def test_documents_in_content_blocks_are_found() -> None:
    block = {"type": "text", "text": xml("pets", "lease"), "index": 0}
    image = {"type": "image", "base64": "AA==", "mime_type": "image/png"}
    messages = [
        ToolMessage(xml("lease", "rent"), tool_call_id="1"),
        ToolMessage([block, image, "text"], tool_call_id="2"),
    ]

    first, second = seen_by_model(messages)

    assert first == messages[0]
    assert REFERENCE in second.content[0]["text"]
    assert second.content[0]["index"] == 0
    assert second.content[1:] == [image, "text"]


@pytest.mark.parametrize(
    "artifact",
    [None, "raw", [], [Document(page_content="not in the text")], [{"page_content": "x"}]],
)
def test_a_result_without_recognisable_documents_stays(artifact: Any) -> None:
    text = f"{TEXTS['lease']}\n\n{TEXTS['rent']}"
    messages = [
        ToolMessage(text, tool_call_id=str(number), artifact=artifact) for number in range(2)
    ]

    assert seen_by_model(messages) == messages


@pytest.mark.parametrize("off", [{"dedup": {"enabled": False}}, {"hints": {"location": False}}])
def test_references_can_be_switched_off(off: dict[str, Any]) -> None:
    messages = [ToolMessage(xml("lease", "rent"), tool_call_id=str(i)) for i in range(2)]

    assert seen_by_model(messages, Settings(**off)) == messages
