"""Documents that only blank lines separate, through the proxy: noticed, and learnt."""

import json
import logging
import random
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from tests.fakes import FakeEngine
from tests.fakes.proxy import ProxyServer
from tests.metrics import read_metric
from tests.requests.formats.joined_texts import PLAIN, JoinedTexts, corpus

CHAT = "/v1/chat/completions"


@pytest.fixture
def without_evidence(start_proxy: Callable[..., ProxyServer]) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=start_proxy(formats={"evidence": False}).url) as client:
        yield client


def ask(client: httpx.Client, *messages: dict[str, str], **fields: Any) -> httpx.Response:
    response = client.post(CHAT, json={"model": "m", "messages": messages, **fields})
    assert response.status_code == 200, response.text
    return response


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def make_texts(seed: int = 1) -> JoinedTexts:
    rng = random.Random(seed)
    return JoinedTexts(rng, corpus(rng), PLAIN)


def test_documents_without_boundaries_are_said(
    client: httpx.Client, proxy: ProxyServer, engine: FakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    texts = make_texts()
    for _ in range(3):
        text = texts.draw()[0]
        response = ask(client, user(text))
        assert response.headers["x-ragboost-bypass"] == "unmarked_documents"
        assert engine.requests[-1].json["messages"] == [user(text)]
    said = [record for record in caplog.records if "wrap the retriever" in record.getMessage()]
    assert len(said) == 1
    assert read_metric(proxy.url, "ragboost_bypass_total", reason="unmarked_documents") == 3
    assert ask(client, user("Why?")).headers["x-ragboost-bypass"] == "no_documents"


def test_blank_lines_count_however_they_are_escaped(client: httpx.Client) -> None:
    body = json.dumps({"model": "m", "messages": [user(make_texts().draw()[0])]})
    for newline in (r"\n", r"\u000a", r"\u000A"):
        response = client.post(CHAT, content=body.replace(r"\n", newline))
        assert response.headers["x-ragboost-bypass"] == "unmarked_documents"


def test_learnt_documents_hit_the_prefix_of_another_order(
    client: httpx.Client, without_evidence: httpx.Client, engine: FakeEngine
) -> None:
    def cached(client: httpx.Client, salt: str) -> float:
        texts, rates = make_texts(), []
        for n in range(120):
            text, documents = texts.draw()
            response = ask(client, user(text), cache_salt=salt)
            request = engine.requests[-1]
            sent = request.json["messages"][0]["content"]
            assert all(document in sent for document in documents)
            assert sent.startswith(PLAIN.partition("\n")[0])
            assert sent.endswith(text.rpartition("\n\n")[2])
            if n >= 60:
                rates.append(request.cached_tokens / request.prompt_tokens)
        assert ("x-ragboost-bypass" in response.headers) == (client is without_evidence)
        return sum(rates) / len(rates)

    assert cached(client, "learnt") > 1.3 * cached(without_evidence, "plain")


def test_a_conversation_is_resent_as_it_was_sent(client: httpx.Client, engine: FakeEngine) -> None:
    """Whether its first turn came before or after its documents were learnt."""
    texts, conversations = make_texts(), []
    for _ in range(80):
        text = texts.draw()[0]
        ask(client, user(text))
        conversations.append((text, engine.requests[-1].json["messages"][0]))
    assert any(sent["content"] != text for text, sent in conversations)
    for text, sent in conversations:
        ask(client, user(text), {"role": "assistant", "content": "Ada."}, user("And when?"))
        assert engine.requests[-1].json["messages"][0] == sent


def test_a_prompt_teaches_and_goes_on_as_it_was_sent(
    client: httpx.Client, engine: FakeEngine
) -> None:
    def sent(prompt: str) -> str:
        response = client.post("/v1/completions", json={"model": "m", "prompt": prompt})
        assert response.status_code == 200, response.text
        return str(engine.requests[-1].json["prompt"])

    texts = make_texts()
    begun = [(text, sent(text)) for text in [texts.draw()[0] + "\nAnswer:" for _ in range(80)]]
    assert sum(first != text for text, first in begun) > 40
    for text, first in begun:
        for later in (" Ada.\n\nQuestion: And when?\nAnswer:", "\nQuestion: Why?\n"):
            assert sent(text + later) == first + later
