"""Receipts: what a request saved, in a header or in the usage that the client asked for."""

import json
import socket
import threading
from typing import Any

import httpx
import pytest

from tests.eventually import DEADLINE_S
from tests.fakes import FakeEngine
from tests.fakes.proxy import ProxyServer, proxy_settings
from tests.metrics import read_metric

TEXTS = {name: f"The {name} document speaks of {name} at some length. " * 8 for name in "abcd"}
CHAT = "/v1/chat/completions"


def chat(names: str, question: str = "why?", **fields: Any) -> dict[str, Any]:
    documents = [{"id": name, "text": TEXTS[name]} for name in names]
    messages = [{"role": "user", "content": question}]
    return {"model": "m", "messages": messages, "ragboost": {"documents": documents}, **fields}


def anthropic(**fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": TEXTS["a"] * 3}]
    return {"model": "m", "max_tokens": 9, "messages": messages, **fields}


def proxy_to(engine: FakeEngine, **proxy: Any) -> ProxyServer:
    return ProxyServer(proxy_settings(engine.url, proxy=proxy))


def usages(text: str) -> list[dict[str, Any]]:
    """The `usage.ragboost` objects of a stream."""
    found = []
    for line in text.splitlines():
        if line.startswith("data: {"):
            event = json.loads(line[6:])
            usage = event.get("usage") or event.get("response", {}).get("usage") or {}
            if "ragboost" in usage:
                found.append(usage["ragboost"])
    return found


def test_a_response_has_a_receipt_that_agrees_with_its_usage_and_keeps_its_bytes(
    engine: FakeEngine,
) -> None:
    with proxy_to(engine, receipts=True) as proxy:
        httpx.post(proxy.url + CHAT, json=chat("abc"))
        answer = httpx.post(proxy.url + CHAT, json=chat("cab", "how?"))
        direct = httpx.post(engine.url + CHAT, content=engine.requests[-1].body)

    receipt, usage = json.loads(answer.headers["x-ragboost-receipt"]), answer.json()["usage"]
    assert receipt["prompt_tokens"] == usage["prompt_tokens"]
    assert receipt["cached_tokens"] == usage["prompt_tokens_details"]["cached_tokens"] > 100
    assert (
        str(receipt["predicted_cached_tokens"])
        == (answer.headers["x-ragboost-cached-tokens-predicted"])
    )
    assert 0 < receipt["saved_tokens"] < receipt["cached_tokens"]  # without what hits anyway
    assert "ragboost" not in usage
    assert len(answer.content) == int(answer.headers["content-length"])
    assert set(answer.json()) == set(direct.json())


def test_documents_that_were_not_sent_again_are_counted(engine: FakeEngine) -> None:
    with proxy_to(engine, receipts=True) as proxy:
        named = {"x-ragboost-session": "s"}
        httpx.post(proxy.url + CHAT, json=chat("ab"), headers=named)
        second = chat("abc", "and then?")
        second["messages"] = [
            {"role": "user", "content": "why?"},
            {"role": "assistant", "content": "so."},
            *second["messages"],
        ]
        answer = httpx.post(proxy.url + CHAT, json=second, headers=named)
        totals = httpx.get(proxy.url + "/dashboard/data").json()["totals"]

    receipt = json.loads(answer.headers["x-ragboost-receipt"])
    assert receipt["dropped_tokens"] > 150
    assert totals["saved_by"]["deduplication"] == receipt["dropped_tokens"]


@pytest.mark.parametrize("asks", [True, False])
def test_a_stream_has_a_receipt_only_in_the_usage_that_its_client_asked_for(
    engine: FakeEngine, asks: bool
) -> None:
    options: dict[str, Any] = {"stream_options": {"include_usage": True}} if asks else {}
    with proxy_to(engine, receipts=True) as proxy:
        answer = httpx.post(proxy.url + CHAT, json=chat("abc", stream=True, **options))
        sent = engine.requests[-1].body
        direct = httpx.post(engine.url + CHAT, content=sent).text

    assert "x-ragboost-receipt" not in answer.headers
    receipts = usages(answer.text)
    assert len(receipts) == int(asks)
    if asks:
        assert receipts[0]["prompt_tokens"] > 0
        assert answer.text.count("data:") == direct.count("data:")
    else:
        assert '"usage"' not in answer.text


def test_a_stream_that_ends_early_behind_its_usage_is_counted_as_its_receipt_says(
    engine: FakeEngine,
) -> None:
    body = chat("abc", stream=True, stream_options={"include_usage": True})
    with proxy_to(engine, receipts=True) as proxy:
        httpx.post(proxy.url + CHAT, json=body)
        before = read_metric(proxy.url, "ragboost_prompt_tokens_total")
        engine.misbehave(die_after_chunks=len(engine.stream_pieces(engine.requests[-1])) - 1)
        answer = httpx.post(proxy.url + CHAT, json=body)
        engine.behave()
        counted = read_metric(proxy.url, "ragboost_prompt_tokens_total") - before

    assert [receipt["prompt_tokens"] for receipt in usages(answer.text)] == [counted]
    assert "[DONE]" not in answer.text


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/responses"])
def test_other_streams_have_one_in_their_last_event_with_usage(
    engine: FakeEngine, path: str
) -> None:
    body = anthropic(stream=True)
    if path == "/v1/responses":
        body = {"model": "m", "input": TEXTS["a"], "stream": True}
    with proxy_to(engine, receipts=True) as proxy:
        answer = httpx.post(proxy.url + path, json=body)

    (receipt,) = usages(answer.text)
    assert receipt["prompt_tokens"] > 50


def _answer_in_part(listener: socket.socket) -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n"
    is_completion = False
    while not is_completion:  # before it, the proxy asks about KV events
        connection, _ = listener.accept()
        with connection:
            is_completion = connection.recv(65536).startswith(b"POST /v1/chat")
            if is_completion:
                connection.sendall(head + b'{"usage": {')


def test_a_response_that_breaks_off_is_cut_and_has_no_receipt() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        backend = threading.Thread(target=_answer_in_part, args=(listener,))
        backend.start()
        settings = proxy_settings(
            f"http://127.0.0.1:{listener.getsockname()[1]}", proxy={"receipts": True}
        )
        with (
            ProxyServer(settings) as proxy,
            httpx.stream("POST", proxy.url + CHAT, json={"model": "m"}) as answer,
        ):
            assert answer.status_code == 200
            assert "x-ragboost-receipt" not in answer.headers
            with pytest.raises(httpx.RemoteProtocolError):
                answer.read()
        backend.join(DEADLINE_S)


def test_without_the_setting_nothing_is_added_and_everything_is_counted(
    engine: FakeEngine,
) -> None:
    with proxy_to(engine) as proxy:
        answer = httpx.post(proxy.url + CHAT, json=chat("abc"))
        stream = httpx.post(
            proxy.url + CHAT,
            json=chat("abc", stream=True, stream_options={"include_usage": True}),
        )
        counted = read_metric(proxy.url, "ragboost_prompt_tokens_total")

    assert "x-ragboost-receipt" not in answer.headers
    assert not usages(stream.text)
    assert counted > 0
