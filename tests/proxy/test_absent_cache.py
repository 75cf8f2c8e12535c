"""A backend that never reports a hit has no prefix cache: this is learnt and said, and unlearnt."""

from typing import Any

import httpx
import pytest

from tests.fakes import FakeEngine
from tests.fakes.proxy import ProxyServer
from tests.metrics import read_metric
from tests.proxy.test_doctor import doctor

CHAT = "/v1/chat/completions"
DOCUMENTS = [f"Document {i} tells of {i}. " * 40 for i in range(4)]


def predicted(proxy: ProxyServer, number: int) -> int:
    documents: Any = {"documents": DOCUMENTS[:3]}
    messages = [{"role": "user", "content": f"Question {number}?"}]
    body = {"model": "m", "messages": messages, "ragboost": documents}
    answer = httpx.post(proxy.url + CHAT, json=body)
    assert answer.status_code == 200
    return int(answer.headers["x-ragboost-cached-tokens-predicted"])


def is_absent(proxy: ProxyServer, engine: FakeEngine) -> float:
    name = engine.url.partition("//")[2]
    return read_metric(proxy.url, "ragboost_backend_prefix_cache_absent", backend=name)


def test_nothing_is_predicted_for_a_backend_without_a_prefix_cache_until_it_reports_a_hit(
    engine: FakeEngine, proxy: ProxyServer, caplog: pytest.LogCaptureFixture
) -> None:
    engine.misbehave(computes=False)
    predictions = [predicted(proxy, number) for number in range(63)]
    assert predictions[0] == 0
    assert min(predictions[1:61]) > 128
    assert predictions[61:] == [0, 0]
    assert is_absent(proxy, engine) == 1
    backends = httpx.get(proxy.url + "/dashboard/data").json()["backends"]
    assert [backend["has_no_prefix_cache"] for backend in backends] == [True]
    assert sum("its prefix cache is off" in record.message for record in caplog.records) == 1
    _, found = doctor("--backend", proxy.url)
    assert "should have hits" in found["hits"]["message"]

    engine.behave()
    for number in range(3):
        predicted(proxy, number)
    assert is_absent(proxy, engine) == 0
    assert predicted(proxy, 9) > 128


def test_misses_that_nobody_predicted_prove_nothing(engine: FakeEngine, proxy: ProxyServer) -> None:
    for number in range(70):
        body = {"model": "m", "messages": [{"role": "user", "content": f"Question {number}?"}]}
        httpx.post(proxy.url + CHAT, json=body)
    assert is_absent(proxy, engine) == 0
