"""Documents in messages through the proxy: shared prefixes, resent histories, untouched bytes."""

import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import httpx
import pytest

from tests.fakes import FakeEngine

CHAT = "/v1/chat/completions"
TEXTS = [f"Document number {i} says: " + f"fact {i} and more of it. " * 20 for i in range(8)]


@pytest.fixture(scope="module")
def engine() -> Iterator[FakeEngine]:
    with FakeEngine() as engine:
        yield engine


def user(*numbers: int, question: str = "Why?") -> dict[str, Any]:
    blocks = "\n".join(f'<document id="{i}0">{TEXTS[i]}</document>' for i in numbers)
    return {"role": "user", "content": f"<documents>\n{blocks}\n</documents>\n\n{question}"}


def ask(client: httpx.Client, messages: list[dict[str, Any]], **fields: Any) -> httpx.Response:
    headers = fields.pop("headers", {})
    body = {"model": "m", "messages": messages, **fields}
    response = client.post(CHAT, json=body, headers=headers)
    assert response.status_code == 200, response.text
    return response


def test_another_order_hits_the_same_prefix(client: httpx.Client, engine: FakeEngine) -> None:
    system = {"role": "system", "content": "You answer from documents."}
    ask(client, [system, user(0, 1, 2)])
    first = engine.requests[-1]
    response = ask(client, [system, user(3, 2, 1, 0)])
    second = engine.requests[-1]
    assert second.cached_tokens > 0.6 * first.prompt_tokens
    assert response.headers["x-ragboost-documents"] == "4"
    assert "x-ragboost-bypass" not in response.headers
    content = second.json["messages"][1]["content"]
    assert all(text in content for text in TEXTS[:4])
    assert '"30" >> "20" >> "10" >> "00"' in content


@pytest.mark.parametrize("headers", [{}, {"x-ragboost-session": "s"}])
def test_a_resent_history_extends_the_last_request(
    client: httpx.Client, engine: FakeEngine, headers: dict[str, str]
) -> None:
    ask(client, [user(1, 0)])
    history: list[dict[str, Any]] = []
    received = []
    for numbers in ((0, 1, 2), (2, 3), (1, 4, 3)):
        history.append(user(*numbers))
        response = ask(client, history, headers=headers)
        received.append(engine.requests[-1])
        history.append(response.json()["choices"][0]["message"])
        ask(client, [user(2, 1, 0, question="Another one?")])
    for before, now in pairwise(received):
        sent = before.json["messages"]
        assert now.json["messages"][: len(sent)] == sent
        assert now.cached_tokens >= before.prompt_tokens - 20
    prompt = received[-1].prompt
    assert [prompt.count(text.strip()) for text in TEXTS[:5]] == [1] * 5
    assert prompt.count("document that begins with") == 3
    assert response.headers["x-ragboost-documents-dropped"] == "3"


def test_shapes_of_a_conversation_may_change(client: httpx.Client, engine: FakeEngine) -> None:
    headers = {"x-ragboost-session": "mixed"}
    first = [{"role": "user", "content": "one?"}]
    ask(client, first, headers=headers, ragboost={"documents": [TEXTS[5]]})
    sent = engine.requests[-1].json["messages"]
    history = [*first, {"role": "assistant", "content": "so"}, user(1, 2)]
    ask(client, history, headers=headers)
    now = engine.requests[-1].json["messages"]
    assert now[:1] == sent
    assert now[2] == history[2]


def test_a_body_in_which_nothing_changes_keeps_its_bytes(
    client: httpx.Client, engine: FakeEngine
) -> None:
    message = json.dumps(user(6, 7))
    body = b'{"model": "m",  "big": 123456789012345678901234567890, "messages": [%b ]}'
    body %= message.encode()
    client.post(CHAT, content=body, headers={"content-type": "application/json"})
    assert engine.requests[-1].body == body


def test_the_caller_may_ask_for_the_original(client: httpx.Client, engine: FakeEngine) -> None:
    ask(client, [user(0, 1)])
    response = ask(client, [user(1, 0)], ragboost={"options": {"boost": False}})
    assert engine.requests[-1].json["messages"] == [user(1, 0)]
    assert response.headers["x-ragboost-bypass"] == "option"


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/responses"])
def test_other_endpoints_are_rewritten_without_asking_for_usage(
    client: httpx.Client, engine: FakeEngine, path: str
) -> None:
    field = "messages" if path == "/v1/messages" else "input"
    for numbers in ((0, 1), (1, 0)):
        body = {"model": "m", "stream": True, field: [user(*numbers)]}
        client.post(path, json=body)
    received = engine.requests[-1]
    assert received.path == path
    assert "stream_options" not in received.json
    content = received.json[field][0]["content"]
    assert content.index(TEXTS[0]) < content.index(TEXTS[1])


def test_a_list_that_stays_now_is_sent_as_it_was_moved(
    client: httpx.Client, engine: FakeEngine
) -> None:
    ask(client, [user(5, 4)])
    given = user(4, 5, 6)
    ask(client, [given])
    moved = engine.requests[-1].json["messages"][0]
    assert moved != given
    response = ask(client, [given, {"role": "user", "content": "Translate each document."}])
    assert response.headers["x-ragboost-bypass"] == "ordered_documents"
    assert engine.requests[-1].json["messages"][0] == moved
