"""Conversations with `BoostPrompt`, and documents that go to the proxy, over real sockets."""

import json
from itertools import pairwise
from typing import Any

import pytest

pytest.importorskip("langchain_openai", reason="comes with the dev extra")

from langchain_core.chat_history import InMemoryChatMessageHistory
from langchain_core.documents import Document
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
    messages_from_dict,
    messages_to_dict,
)
from langchain_core.runnables import RunnableConfig, chain
from langchain_core.runnables.history import RunnableWithMessageHistory
from langchain_openai import ChatOpenAI

from ragboost import Booster
from ragboost.integrations.langchain import BoostPrompt, extra_body
from tests.fakes import FakeEngine
from tests.fakes.proxy import ProxyServer
from tests.integrations.corpus import FIRST, SECOND, TEXTS, num_copies, words

TURNS = (("Who?", FIRST), ("When?", SECOND), ("Where?", ("rent", "parking")))


def documents(names: tuple[str, ...]) -> list[Document]:
    return [Document(page_content=TEXTS[name], id=name) for name in names]


def chat_model(url: str) -> ChatOpenAI:
    return ChatOpenAI(base_url=f"{url}/v1", api_key="unused", model="fake-model", max_retries=0)


@pytest.fixture
def model(engine: FakeEngine) -> ChatOpenAI:
    return chat_model(engine.url)


def test_each_turn_extends_the_prefix_and_sends_documents_once(
    engine: FakeEngine, model: ChatOpenAI
) -> None:
    prompt = BoostPrompt(system="Be brief.")
    history: list[BaseMessage] = []
    for question, names in TURNS:
        given = {"question": question, "documents": documents(names), "history": history}
        messages = prompt.invoke(given).to_messages()
        history = [*messages[1:], model.invoke(messages)]

    prompts = [request.prompt for request in engine.completions]
    for earlier, later in pairwise(prompts):
        assert later.startswith(earlier.removesuffix("<|assistant|>\n"))
    assert num_copies(prompts[-1]) == dict.fromkeys(("lease", "rent", "pets", "parking"), 1)
    assert "Please refer to [Doc_rent] in the previous conversation" in prompts[-1]
    assert all("ragboost" not in request.body.decode() for request in engine.completions)


def converse(prompt: BoostPrompt, model: ChatOpenAI, session: str, *, found: str = "") -> None:
    """Ask three questions in LangChain's own history, which keeps questions and answers only."""
    histories: dict[str, InMemoryChatMessageHistory] = {}
    chain = RunnableWithMessageHistory(
        prompt | model,
        lambda name: histories.setdefault(name, InMemoryChatMessageHistory()),
        input_messages_key="question",
        history_messages_key="history",
    )
    for question, names in TURNS:
        given = {"question": question, "documents": documents((found,) if found else names)}
        chain.invoke(given, config={"configurable": {"session_id": session}})
    assert [m.text for m in histories[session].messages[::2]] == [turn[0] for turn in TURNS]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_langchains_own_history_is_sent_again_as_it_was_sent(
    engine: FakeEngine, model: ChatOpenAI
) -> None:
    prompt = BoostPrompt(system="Be brief.")
    converse(prompt, model, "a")
    prompts = [request.prompt for request in engine.completions]
    for earlier, later in pairwise(prompts):
        assert later.startswith(earlier.removesuffix("<|assistant|>\n"))
    assert num_copies(prompts[-1]) == dict.fromkeys(("lease", "rent", "pets", "parking"), 1)
    assert engine.completions[-1].cached_tokens > 0.8 * engine.completions[-2].prompt_tokens


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_conversation_gets_nothing_of_another_with_the_same_questions(
    engine: FakeEngine, model: ChatOpenAI
) -> None:
    prompt = BoostPrompt(system="Be brief.")
    converse(prompt, model, "a")
    num = len(engine.completions)
    converse(prompt, model, "b", found="garden")
    for request in engine.completions[num:]:
        assert num_copies(request.prompt) == {"garden": 1}


async def test_a_langgraph_thread_is_sent_again_as_it_was_sent(
    engine: FakeEngine, model: ChatOpenAI
) -> None:
    graphs = pytest.importorskip("langgraph.graph", reason="needs the extra langchain")
    savers = pytest.importorskip("langgraph.checkpoint.memory")
    prompt, found = BoostPrompt(system="Be brief."), dict(TURNS)

    async def answer(state: dict[str, list[BaseMessage]]) -> dict[str, list[BaseMessage]]:
        *history, question = state["messages"]
        given = {"question": question.text, "documents": documents(found[question.text])}
        return {"messages": [await (prompt | model).ainvoke({**given, "history": history})]}

    builder = graphs.StateGraph(graphs.MessagesState)
    builder.add_node("answer", answer)
    builder.add_edge(graphs.START, "answer")
    graph = builder.compile(checkpointer=savers.InMemorySaver())
    for question, _ in TURNS:
        config: RunnableConfig = {"configurable": {"thread_id": "7"}}
        await graph.ainvoke({"messages": [("user", question)]}, config)

    prompts = [request.prompt for request in engine.completions]
    for earlier, later in pairwise(prompts):
        assert later.startswith(earlier.removesuffix("<|assistant|>\n"))


async def test_the_prompt_works_asynchronously_and_without_a_system_message() -> None:
    value = await BoostPrompt().ainvoke({"question": "Who?", "documents": documents(FIRST)})

    (message,) = value.to_messages()
    assert isinstance(message, HumanMessage)
    assert message.text.startswith("[Doc_lease]\n")
    assert message.text.endswith("\n\nWho?")


def test_a_history_that_was_stored_as_json_is_known_again() -> None:
    prompt = BoostPrompt()
    first = prompt.invoke({"question": "Who?", "documents": documents(FIRST)}).to_messages()
    stored = json.dumps(messages_to_dict([*first, AIMessage("Ada.")]))

    history = messages_from_dict(json.loads(stored))
    again = {"question": "When?", "documents": documents(SECOND), "history": history}
    second = BoostPrompt().invoke(again).to_messages()[-1]

    assert words(second.text) == ["parking"]
    assert "Please refer to [Doc_pets] in the previous conversation." in second.text
    assert "Please refer to [Doc_lease] in the previous conversation." in second.text


def test_a_document_whose_message_was_cut_off_is_sent_again() -> None:
    prompt = BoostPrompt()
    history: list[BaseMessage] = []
    for question, names in TURNS[:2]:
        given = {"question": question, "documents": documents(names), "history": history}
        history = [*prompt.invoke(given).to_messages(), AIMessage("Yes.")]

    given = {"question": "Where?", "documents": documents(FIRST), "history": history[2:]}
    last = prompt.invoke(given).to_messages()[-1]

    assert set(words(last.text)) == {"lease", "rent", "pets"}


def test_a_history_of_plain_messages_is_no_reason_to_leave_documents_out() -> None:
    prompt = BoostPrompt()
    prompt.invoke({"question": "Who?", "documents": documents(FIRST)})
    plain = [HumanMessage("Who?"), AIMessage("Ada.")]

    given = {"question": "When?", "documents": documents(SECOND), "history": plain}
    *_, last = prompt.invoke(given).to_messages()

    assert words(last.text) == ["pets", "parking", "lease"]


def test_only_prompts_with_the_same_system_message_share_an_order() -> None:
    booster = Booster()
    for system, expected in (("A", FIRST), ("B", SECOND)):
        given = {"question": "q", "documents": documents(expected)}
        *_, last = BoostPrompt(booster=booster, system=system).invoke(given).to_messages()
        assert words(last.text) == list(expected)

    given = {"question": "q", "documents": documents(SECOND)}
    *_, last = BoostPrompt(booster=booster, system="A").invoke(given).to_messages()
    assert words(last.text) == ["lease", "pets", "parking"]


def test_a_missing_variable_is_named() -> None:
    with pytest.raises(KeyError, match="documents"):
        BoostPrompt().invoke({"question": "Who?"})


def test_documents_go_to_the_proxy_beside_the_messages(
    engine: FakeEngine, proxy: ProxyServer
) -> None:
    model = chat_model(proxy.url)

    @chain
    def answer(given: dict[str, Any]) -> Any:
        return model.bind(extra_body=extra_body(given["documents"])).invoke(given["question"])

    answer.invoke({"question": "Who?", "documents": documents(FIRST)})
    reply = answer.invoke({"question": "When?", "documents": documents(SECOND)})

    sent = engine.completions[-1].json
    assert words(sent["messages"][-1]["content"]) == ["lease", "pets", "parking"]
    assert "[Doc_pets] >> [Doc_parking] >> [Doc_lease]" in sent["messages"][-1]["content"]
    assert reply.usage_metadata["input_token_details"]["cache_read"] > 100


async def test_a_stream_through_the_proxy_has_text_and_usage(
    engine: FakeEngine, proxy: ProxyServer
) -> None:
    model = chat_model(proxy.url).bind(extra_body=extra_body(documents(FIRST), session_id="s"))

    pieces = [piece async for piece in model.astream("Who?")]

    assert len("".join(piece.text for piece in pieces).split()) == 4
    assert engine.completions[-1].json["messages"][-1]["content"].startswith("[Doc_lease]")


def test_a_conversation_through_the_proxy_sends_documents_once(
    engine: FakeEngine, proxy: ProxyServer
) -> None:
    model = chat_model(proxy.url)
    history: list[BaseMessage] = []
    for question, names in TURNS:
        history.append(HumanMessage(question))
        body = extra_body(documents(names), session_id="user-42")
        history.append(model.invoke(history, extra_body=body))

    sent = num_copies(engine.completions[-1].prompt)
    assert sent == dict.fromkeys(("lease", "rent", "pets", "parking"), 1)
