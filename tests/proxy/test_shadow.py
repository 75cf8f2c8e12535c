"""Shadow mode: requests are forwarded as they came, and what boosting would save is counted."""

import json
from collections.abc import Callable

import httpx

from tests.fakes import FakeEngine
from tests.fakes.proxy import ProxyServer
from tests.metrics import read_metric
from tests.proxy.routing.test_routing import ask, documents

CHAT = {"model": "m", "messages": [{"role": "user", "content": "why?"}]}
Start = Callable[..., ProxyServer]
SAVED = "ragboost_shadow_saved_prompt_tokens_total"


def test_the_original_is_forwarded_and_savings_are_counted(
    engine: FakeEngine, start_proxy: Start
) -> None:
    proxy = start_proxy(proxy={"shadow": True})
    texts = {i: f"Document {i} tells of {i}. " * 40 for i in range(4)}
    for order in ((1, 2, 3), (3, 2, 1), (2, 1, 3)):
        body = {**CHAT, "documents": [{"title": f"t{i}", "text": texts[i]} for i in order]}
        raw = json.dumps(body, indent=1).encode()
        answer = httpx.post(f"{proxy.url}/v1/chat/completions", content=raw)
        assert answer.headers["x-ragboost-bypass"] == "shadow"
        assert engine.requests[-1].body == raw
    assert read_metric(proxy.url, SAVED, by="order") > 1000
    assert read_metric(proxy.url, "ragboost_shadow_extra_prompt_tokens_total", by="order") == 0
    assert read_metric(proxy.url, "ragboost_saved_prompt_tokens_total") == 0  # nothing was
    data = httpx.get(f"{proxy.url}/dashboard/data").json()
    assert data["is_shadow"]
    assert data["totals"]["saved_tokens"] > 1000
    assert data["totals"]["engine_cached_tokens"] == data["totals"]["cached_tokens"]


def test_a_ragboost_object_is_rendered_in_the_order_given(
    engine: FakeEngine, start_proxy: Start
) -> None:
    proxy = start_proxy(proxy={"shadow": True})
    history = [{"role": "user", "content": "one?"}]
    named = {"session_id": "s"}
    first = ask(proxy.url, messages=history, ragboost={**named, "documents": documents(1, 2)})
    history += [first.json()["choices"][0]["message"], {"role": "user", "content": "two?"}]
    ask(proxy.url, messages=history, ragboost={**named, "documents": documents(2, 1)})
    before, after = (received.json["messages"] for received in engine.completions)
    assert after[0] == before[0]
    assert after[-1]["content"].index("Document 2 tells") < after[-1]["content"].index(
        "Document 1 tells"
    )
    assert "ragboost" not in engine.completions[-1].json
    assert read_metric(proxy.url, SAVED, by="deduplication") > 400


def test_repeated_documents_of_a_named_conversation_are_counted(
    engine: FakeEngine, start_proxy: Start
) -> None:
    proxy = start_proxy(proxy={"shadow": True})
    history, named = [{"role": "user", "content": "one?"}], {"session_id": "s"}
    first = ask(proxy.url, messages=history, ragboost={**named, "documents": documents(1, 2)})
    history += [first.json()["choices"][0]["message"], {"role": "user", "content": "two?"}]
    ask(proxy.url, messages=history, ragboost={**named, "documents": documents(2, 1)})
    before, after = (received.json["messages"] for received in engine.completions)
    assert after[0] == before[0]
    assert "Document 1 tells" in after[-1]["content"]
    assert read_metric(proxy.url, SAVED, by="deduplication") > 400


def test_documents_in_messages_are_left_alone(engine: FakeEngine, start_proxy: Start) -> None:
    proxy = start_proxy(proxy={"shadow": True})
    texts = "".join(f"<document>Text {i}. {'word ' * 60}</document>\n" for i in (2, 1, 2))
    raw = json.dumps({**CHAT, "messages": [{"role": "user", "content": texts}]}, indent=1).encode()
    answer = httpx.post(f"{proxy.url}/v1/chat/completions", content=raw)
    assert answer.headers["x-ragboost-bypass"] == "shadow"
    assert engine.requests[-1].body == raw


def test_repeated_documents_of_a_chat_session_are_counted(
    engine: FakeEngine, start_proxy: Start
) -> None:
    proxy = start_proxy(proxy={"shadow": True})
    with httpx.Client(base_url=f"{proxy.url}/v1") as client:
        session = client.post("/sessions", json={"model": "m"}).json()["id"]
        for question in ("one?", "two?"):
            turn = {"query": question, "documents": documents(1, 2)}
            answer = client.post(f"/sessions/{session}/chat/completions", json=turn)
            assert answer.status_code == 200, answer.text

    before, after = (received.json["messages"] for received in engine.completions)
    assert after[0] == before[0]
    assert "Document 1 tells" in after[-1]["content"]
    assert read_metric(proxy.url, SAVED, by="deduplication") > 400
