"""Why a request misses the prefix cache: header, receipt, metric, dashboard, and the safe mends."""

import json
from typing import Any

import httpx
import pytest

from tests.fakes import FakeEngine
from tests.fakes.proxy import ProxyServer, proxy_settings
from tests.metrics import read_metric
from tests.proxy.hosted.test_lint import other_key_order, request, with_tools

CHAT = "/v1/chat/completions"


@pytest.mark.parametrize("stable", ["off", "safe"])
def test_the_cause_is_in_header_receipt_metric_and_dashboard_unless_it_is_mended(
    engine: FakeEngine, stable: str
) -> None:
    sections: dict[str, Any] = {"proxy": {"receipts": True}, "stable": stable}
    with ProxyServer(proxy_settings(engine.url, **sections)) as proxy:
        first = httpx.post(proxy.url + CHAT, json=request())
        answer = httpx.post(proxy.url + CHAT, json=with_tools(request(turns=3), other_key_order))
        data = httpx.get(proxy.url + "/dashboard/data").json()
        cause = "JSON keys in another order"
        count = read_metric(proxy.url, "ragboost_cache_breaks_total", cause=cause)

    assert "x-ragboost-cache-break" not in first.headers
    receipt = json.loads(answer.headers["x-ragboost-receipt"])
    if stable == "safe":
        assert "x-ragboost-cache-break" not in answer.headers
        assert "cache_break" not in receipt
        assert data["cache_breaks"] == {}
        assert count == 0
        return
    said = answer.headers["x-ragboost-cache-break"]
    assert said.startswith("diverged at tools[0], 0 tokens in: JSON keys in another order; ")
    found = receipt["cache_break"]
    assert found["path"] == "tools[0]"
    assert found["lost_tokens"] > 500
    (figures,) = data["cache_breaks"].values()
    assert (figures["count"], figures["lost_tokens"]) == (count, found["lost_tokens"])
    assert count == 1
    assert [entry["cache_break"] for entry in data["recent"]] == [said, None]


def test_the_place_is_that_in_the_body_that_is_sent(engine: FakeEngine) -> None:
    def changed(tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
        tools[0]["function"]["description"] = "Something else."
        return tools

    with ProxyServer(proxy_settings(engine.url, stable="safe")) as proxy:  # "book" before "search"
        httpx.post(proxy.url + CHAT, json=request())
        answer = httpx.post(proxy.url + CHAT, json=with_tools(request(turns=3), changed))

    said = answer.headers["x-ragboost-cache-break"]
    assert said.startswith("diverged at tools[1], ")


def test_requests_are_forwarded_byte_by_byte_and_the_backend_is_told_nothing(
    engine: FakeEngine, proxy: ProxyServer
) -> None:
    bodies = [json.dumps(request("Now 10:04. ")), json.dumps(request("Now 10:05. ", 3))]
    for body in bodies:
        answer = httpx.post(proxy.url + CHAT, content=body)
    assert "date or time" in answer.headers["x-ragboost-cache-break"]
    assert [received.body.decode() for received in engine.requests] == bodies
    assert not any("cache-break" in name for name in engine.requests[-1].headers)
