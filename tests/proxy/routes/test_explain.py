"""`POST /ragboost/explain`: who may ask, what is answered, and that nothing changes."""

import json
import random
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from scripts.proxy_openapi import proxy_document
from tests.fakes import FakeEngine
from tests.fakes.proxy import ProxyServer
from tests.metrics import read_metric

CHAT, EXPLAIN = "/v1/chat/completions", "/ragboost/explain"
TEXTS = [f"Document {name} tells of the {name} and of nothing else. " * 4 for name in "abc"]
StartProxy = Callable[..., ProxyServer]


def chat(names: str = "abc", **fields: Any) -> dict[str, Any]:
    text = "".join(f"<passage>\n{TEXTS['abc'.index(name)]}\n</passage>\n" for name in names)
    return {"model": "m", "messages": [{"role": "user", "content": f"{text}\nWhy?"}], **fields}


def test_a_request_is_explained_and_reaches_no_backend(
    proxy: ProxyServer, engine: FakeEngine
) -> None:
    num = len(engine.requests)
    answer = httpx.post(proxy.url + EXPLAIN, json=chat())

    found = answer.json()
    assert (answer.status_code, answer.headers["cache-control"]) == (200, "no-store")
    assert (found["detection"], found["frame"], found["order"]) == ("found", "<passage>", [3, 2, 1])
    assert "Document b tells" in found["documents"][1]["begins"]
    assert sorted(found["sent"]) == ["messages", "model"]
    assert len(engine.requests) == num


def test_explaining_changes_no_order_and_no_figure(proxy: ProxyServer, engine: FakeEngine) -> None:
    httpx.post(proxy.url + CHAT, json=chat("abc"))
    before = httpx.get(proxy.url + "/dashboard/data").json()

    for names in ("cab", "bca", "cba"):
        assert httpx.post(proxy.url + EXPLAIN, json=chat(names)).json()["detection"] == "found"

    after = httpx.get(proxy.url + "/dashboard/data").json()
    for part in ("indexes", "not_boosted", "recent", "totals"):
        assert after[part] == before[part] or part == "totals"
    assert after["totals"]["index_nodes"] == before["totals"]["index_nodes"]
    assert read_metric(proxy.url, "ragboost_detections_total") == 1
    httpx.post(proxy.url + CHAT, json=chat("cab"))
    sent = engine.completions[-1].json["messages"][0]["content"]
    assert sent.index("the a and") < sent.index("the b and") < sent.index("the c and")


def test_only_who_may_send_requests_may_ask(start_proxy: StartProxy) -> None:
    url = start_proxy(proxy={"api_keys": ["key-of-a-team"]}).url

    for headers in ({}, {"authorization": "Bearer wrong"}):
        refused = httpx.post(url + EXPLAIN, json=chat(), headers=headers)
        assert refused.status_code == 401
        assert "passage" not in refused.text
    answer = httpx.post(url + EXPLAIN, json=chat(), headers={"x-api-key": "key-of-a-team"})
    assert answer.json()["detection"] == "found"
    assert "key-of-a-team" not in answer.text


def test_a_body_beyond_the_limit_is_refused(start_proxy: StartProxy) -> None:
    url = start_proxy(proxy={"max_body_bytes": 10_000}).url
    assert httpx.post(url + EXPLAIN, content=b"x" * 10_001).status_code == 413
    assert httpx.post(url + EXPLAIN, content=b"x" * 10_000).json()["detection"] == "malformed_body"


@pytest.mark.parametrize("content", [b"", b"\xff\x00", b"nonsense", b"[[[[", b'"text"'])
def test_garbage_is_explained_too(proxy: ProxyServer, content: bytes) -> None:
    found = httpx.post(proxy.url + EXPLAIN, content=content).json()
    assert (found["detection"], found["sent"]) == ("malformed_body", None)
    assert found["why"]
    assert found["advice"]


def test_a_large_request_is_explained_while_others_are_answered(proxy: ProxyServer) -> None:
    text = "".join(f"<passage>\n{at} {TEXTS[0] * 20}\n</passage>\n" for at in range(600))
    body = json.dumps({"messages": [{"role": "user", "content": text}]}).encode()

    found = httpx.post(proxy.url + EXPLAIN, content=body).json()

    assert len(found["documents"]) == 600
    assert found["order"] == list(range(600, 0, -1))


def test_it_is_a_post() -> None:
    document = proxy_document()["paths"]
    assert list(document[EXPLAIN]) == ["post"]


def joined(rng: random.Random, documents: list[str]) -> dict[str, Any]:
    chosen = "\n\n".join(rng.sample(documents, 4))
    text = f"Use the following context to answer.\n\n{chosen}\n\nQuestion: what is {rng.random()}?"
    return {"model": "m", "messages": [{"role": "user", "content": text}]}


def test_what_traffic_has_taught_is_used_with_the_same_key_and_trials_teach_nothing(
    proxy: ProxyServer,
) -> None:
    rng = random.Random(3)
    words = ("lease", "rent", "cats", "dogs", "garden", "roof", "door", "key", "wall", "lamp")
    documents = [
        f"Paragraph {rng.random()}: {' '.join(rng.choices(words, k=40))}, {at}." for at in range(10)
    ]
    key = {"authorization": "Bearer one"}

    def detection(headers: dict[str, str]) -> str:
        answer = httpx.post(proxy.url + EXPLAIN, json=joined(rng, documents), headers=headers)
        return str(answer.json()["detection"])

    for _ in range(20):
        assert detection(key) == "unmarked_documents"
    bypasses = []
    for _ in range(20):
        answer = httpx.post(proxy.url + CHAT, json=joined(rng, documents), headers=key)
        bypasses.append(answer.headers.get("x-ragboost-bypass"))
    assert (bypasses[0], bypasses[-1]) == ("unmarked_documents", None)
    assert detection(key) == "found"
    assert detection({"authorization": "Bearer other"}) == "unmarked_documents"
