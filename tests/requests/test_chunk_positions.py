"""Backends that reuse chunks are told where documents stand; no other ever sees the field."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from ragboost.booster.context import Context, render_document
from ragboost.config import EngineSettings
from ragboost.engine import create_engine_app
from ragboost.proxy.serving import serve_in_thread
from ragboost.requests.chunk_positions import find_chunks
from ragboost.types import Document
from tests.eventually import eventually
from tests.fakes import FakeEngine
from tests.fakes.proxy import ProxyServer, proxy_settings
from tests.metrics import read_metric

TEXTS = [f"Passage {i}. " + f"Part {i} has {i * 13} pieces. " * 8 for i in range(4)]
APPROX = {"policy": "gradual", "ratio": 0.2}


@pytest.fixture(scope="module")
def engine_url() -> Iterator[str]:
    settings = EngineSettings(model=Path("ragboost-tiny"), max_model_len=4096)
    with serve_in_thread(create_engine_app(settings)) as url:
        yield url


@pytest.fixture(scope="module")
def in_front(engine_url: str) -> Iterator[ProxyServer]:
    settings = proxy_settings(engine_url, ordering={"min_saved_tokens": 1})
    with ProxyServer(settings) as proxy:
        wait_until_told(proxy)
        yield proxy


def wait_until_told(proxy: ProxyServer) -> None:
    eventually(lambda: proxy.app.state.engines.is_supported)


def body_of(order: list[int], **ragboost: Any) -> dict[str, Any]:
    documents = [{"text": TEXTS[i], "id": f"doc{i}"} for i in order]
    return {
        "model": "ragboost-tiny",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Which part has most pieces?"},
        ],
        "max_tokens": 2,
        "ragboost": {"documents": documents, **ragboost},
    }


def post(proxy: ProxyServer, body: dict[str, Any]) -> dict[str, Any]:
    answer = httpx.post(f"{proxy.url}/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    usage: dict[str, Any] = answer.json()["usage"]
    return usage


def test_documents_that_ordering_leaves_over_are_reused_as_chunks(
    in_front: ProxyServer, engine_url: str
) -> None:
    cold = post(in_front, body_of([2, 0, 1], reuse=APPROX))["ragboost"]
    eventually(lambda: read_metric(engine_url, "ragboost_engine_chunks_stored_total"), equals=3)
    usage = post(in_front, body_of([3, 1, 0], reuse=APPROX))
    warm = usage["ragboost"]

    assert sum(cold.values()) == cold["computed"]
    assert sum(warm.values()) == usage["prompt_tokens"]
    # 2 and 3 are the most relevant ones and stand last; 0 and 1 are an exact prefix.
    assert warm["exact"] > 150
    httpx.post(f"{engine_url}/reset_prefix_cache")
    moved = post(in_front, body_of([2, 1, 0], reuse=APPROX))["ragboost"]
    assert moved["computed"] < cold["computed"] / 3, "no document is computed again"


def test_without_being_asked_the_engines_own_setting_decides(in_front: ProxyServer) -> None:
    assert "ragboost" not in post(in_front, body_of([0, 2, 1]))
    exact = post(in_front, body_of([0, 2, 1], reuse="exact"))["ragboost"]
    assert (exact["reused"], exact["recomputed"]) == (0, 0)


def test_what_is_wrong_with_reuse_is_said_by_the_engine(in_front: ProxyServer) -> None:
    body = body_of([0, 1], reuse={"ratio": 7})
    answer = httpx.post(f"{in_front.url}/v1/chat/completions", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "ragboost.reuse.ratio"


SHAPES: dict[str, dict[str, Any]] = {
    "ragboost_object": body_of([0, 1, 2], reuse=APPROX),
    "xml": {
        "messages": [
            {
                "role": "user",
                "content": "".join(f"<document>{text}</document>\n" for text in TEXTS) + "Which?",
            }
        ],
        "ragboost": {"reuse": APPROX},
    },
    "field": {
        "messages": [{"role": "user", "content": "Which?"}],
        "documents": [{"title": "", "text": text} for text in TEXTS],
        "ragboost": {"reuse": "approx"},
    },
    "no documents": {
        "messages": [{"role": "user", "content": "Hello"}],
        "ragboost": {"reuse": "approx"},
    },
}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_backend_that_is_not_ours_never_sees_the_field(
    engine: FakeEngine, start_proxy: Callable[..., ProxyServer], shape: str
) -> None:
    proxy = start_proxy()
    for _ in range(2):
        httpx.post(f"{proxy.url}/v1/chat/completions", json=SHAPES[shape])
    assert not proxy.app.state.engines.is_supported
    assert len(engine.completions) == 2
    assert not [sent for sent in engine.completions if "ragboost" in sent.json]


@pytest.mark.parametrize("shape", ["ragboost_object", "xml"])
def test_where_it_is_configured_any_backend_is_supported(
    engine: FakeEngine, start_proxy: Callable[..., ProxyServer], shape: str
) -> None:
    proxy = start_proxy(backend={"reuse_chunks": True})
    httpx.post(f"{proxy.url}/v1/chat/completions", json=SHAPES[shape])
    sent = engine.completions[0].json
    assert sent["ragboost"]["reuse"] == APPROX
    chunks = sent["ragboost"]["chunks"]
    assert len(chunks) in (3, 4)
    for message, start, stop in chunks:
        text = sent["messages"][message]["content"][start:stop]
        assert any(passage in text for passage in TEXTS)


@pytest.mark.parametrize("odd", [b'"\\ud800"', b"NaN", b"1e400"])
def test_a_message_with_what_only_engines_read_has_positions(
    engine: FakeEngine, start_proxy: Callable[..., ProxyServer], odd: bytes
) -> None:
    proxy = start_proxy(backend={"reuse_chunks": True})
    body = SHAPES["ragboost_object"]
    body = {**body, "messages": [{"role": "user", "content": "Which part?", "name": "ODD"}]}
    raw = msgspec.json.encode(body).replace(b'"ODD"', odd)

    answer = httpx.post(f"{proxy.url}/v1/chat/completions", content=raw)

    assert answer.status_code == 200, answer.text
    assert len(engine.completions[0].json["ragboost"]["chunks"]) in (3, 4)


def test_documents_in_texts_are_reused_without_being_ordered(
    engine: FakeEngine, start_proxy: Callable[..., ProxyServer]
) -> None:
    proxy = start_proxy(backend={"reuse_chunks": True}, ordering={"enabled": False})
    for _ in range(2):
        httpx.post(f"{proxy.url}/v1/chat/completions", json=SHAPES["xml"])
    for request in engine.completions:
        assert request.json["messages"] == SHAPES["xml"]["messages"]
        assert len(request.json["ragboost"]["chunks"]) in (3, 4)


def test_it_can_be_switched_off(engine_url: str) -> None:
    settings = proxy_settings(engine_url, backend={"reuse_chunks": False})
    with ProxyServer(settings) as proxy:
        assert "ragboost" not in post(proxy, body_of([0, 1], reuse=APPROX))


def test_nobody_is_supported_while_one_of_several_backends_is_not_ours(
    engine: FakeEngine, engine_url: str
) -> None:
    settings = proxy_settings(engine.url, backends=[{"url": engine.url}, {"url": engine_url}])  # type: ignore[arg-type]
    with ProxyServer(settings) as proxy:
        eventually(lambda: "/chunk_reuse" in engine.probes)
        for _ in range(2):
            assert "ragboost" not in post(proxy, body_of([0, 1], reuse=APPROX))
        assert not proxy.app.state.engines.is_supported


def test_a_proxy_in_front_of_a_proxy_leaves_the_field_to_it(in_front: ProxyServer) -> None:
    with ProxyServer(proxy_settings(in_front.url)) as outer:
        assert httpx.get(f"{in_front.url}/chunk_reuse").status_code == 404

        answer = httpx.post(f"{outer.url}/v1/chat/completions", json=body_of([0, 1]))

        assert not outer.app.state.engines.is_supported
    assert answer.status_code == 200


def test_documents_are_found_in_prompts_parts_and_raw_messages() -> None:
    documents = (Document("one two"), Document("three"), Document("gone"))
    context = Context(
        "q", documents, documents, positions=(0, 1, 2), labels=("[Doc_1]", "[Doc_2]", "[Doc_3]")
    )
    block = render_document(documents[1], label="[Doc_2]")
    text = f"x one two y {block}?"
    want = [[2, 9], [12, 12 + len(block)]]
    assert find_chunks({"prompt": text}, context, message=None) == [*want, None]
    assert find_chunks({"prompt": [1, 2]}, context, message=None) == [None] * 3
    raw = msgspec.Raw(msgspec.json.encode({"role": "user", "content": text}))
    in_message = [[0, *span] for span in want]
    assert find_chunks({"messages": [raw]}, context, message=0) == [*in_message, None]
    parts = [{"type": "text", "text": "x one two"}, {"type": "text", "text": "three"}]
    body = {"messages": [{}, {"role": "user", "content": parts}]}
    assert find_chunks(body, context, message=1) == [[1, 2, 9], [1, 10, 15], None]
    image = [*parts, {"type": "image_url", "image_url": {}}]
    body = {"messages": [{"role": "user", "content": image}]}
    assert find_chunks(body, context, message=0) == [None] * 3


def test_a_prefix_whose_rent_reaches_its_price_is_bought_and_then_found(engine_url: str) -> None:
    fresh = [f"Leaflet {i}. " + f"Fold {i} has {i * 17} lines. " * 12 for i in range(2)]
    receipts = []

    def ask(proxy: ProxyServer, texts: list[str]) -> None:
        body = body_of([], reuse={"policy": "gradual", "ratio": 0.5})
        body["ragboost"]["documents"] = [{"text": text} for text in texts]
        answer = httpx.post(f"{proxy.url}/v1/chat/completions", json=body)
        receipts.append(msgspec.json.decode(answer.headers["x-ragboost-receipt"]))
        origins = answer.json()["usage"]["ragboost"]
        assert sum(origins.values()) == receipts[-1]["prompt_tokens"]
        assert origins["computed"] >= receipts[-1]["bought_tokens"]

    with ProxyServer(proxy_settings(engine_url, proxy={"receipts": True})) as proxy:
        wait_until_told(proxy)
        num_nodes = partial(read_metric, proxy.url, "ragboost_index_nodes")
        for number, text in enumerate(fresh, 1):  # computed exactly, since nothing is stored
            ask(proxy, [text])
            eventually(num_nodes, equals=number)
        for _ in range(3):
            ask(proxy, fresh)
        bought = read_metric(proxy.url, "ragboost_bought_prompt_tokens_total")

    first, second, third = receipts[2:]
    assert (first["bought_tokens"], first["reused_tokens"] > 0) == (0, True)
    assert second["bought_tokens"] == bought > 50
    assert second["reused_tokens"] == second["recomputed_tokens"] == 0
    assert third["cached_tokens"] > second["cached_tokens"] + 50
    assert third["bought_tokens"] == 0
