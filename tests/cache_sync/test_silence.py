"""A stream on which nothing arrives: `/ready`, the log and the dashboard say why, once."""

import logging
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from ragboost.engine_hooks.reporter import Reporter
from tests.eventually import eventually
from tests.fakes import FakeEngine
from tests.fakes.events import EventPublisher
from tests.fakes.proxy import ProxyServer, proxy_settings

BODY = {"model": "m", "messages": [{"role": "user", "content": "A question of some length? " * 20}]}


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ragboost.cache_sync.sync._INSPECT_S", 0.05)
    monkeypatch.setattr("ragboost.cache_sync.sync._RETRY_S", 0.05)


def stream_of(proxy: ProxyServer) -> dict[str, Any]:
    (stream,) = httpx.get(f"{proxy.url}/ready").json()["kv_events"].values()
    assert isinstance(stream, dict)
    return stream


def counting(caplog: pytest.LogCaptureFixture, text: str) -> Callable[[], int]:
    return lambda: sum(text in record.getMessage() for record in caplog.records)


def test_an_engine_that_connects_instead_of_listening_is_named_once(
    unused_port: int, caplog: pytest.LogCaptureFixture
) -> None:
    publisher = EventPublisher(f"tcp://127.0.0.1:{unused_port}", is_connecting=True)
    advice = f"start the engine with tcp://*:{unused_port}, or use the hook"
    logged = counting(caplog, advice)
    with (
        caplog.at_level(logging.WARNING, "ragboost"),
        FakeEngine(events=publisher) as engine,
        ProxyServer(proxy_settings(engine.url)) as proxy,
    ):
        eventually(logged, equals=1)
        num_probes = len(engine.probes)
        eventually(lambda: len(engine.probes) > num_probes + 8)  # many inspections later
        assert logged() == 1
        assert stream_of(proxy)["state"] == "fallback"
        assert advice in stream_of(proxy)["reason"]
        (backend,) = httpx.get(f"{proxy.url}/dashboard/data").json()["backends"]
        assert advice in backend["kv_events"][0]


def test_reports_of_the_hook_take_the_place_of_a_silent_stream(unused_port: int) -> None:
    publisher = EventPublisher(f"tcp://127.0.0.1:{unused_port}", is_connecting=True)
    with (
        FakeEngine(events=publisher) as engine,
        ProxyServer(proxy_settings(engine.url)) as proxy,
    ):
        eventually(lambda: "reason" in stream_of(proxy))
        reporter = Reporter(proxy.url, stream="any/0")
        eventually(lambda: stream_of(proxy)["state"] == "exact")
        assert "reason" not in stream_of(proxy)
        reporter.close()


def test_a_stream_that_is_silent_although_requests_are_answered_is_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    publisher = EventPublisher(replay_endpoint=None, deliver=lambda _seq, _payload: [])
    logged = counting(caplog, "switch its KV events on")
    with (
        caplog.at_level(logging.WARNING, "ragboost"),
        FakeEngine(events=publisher) as engine,
        ProxyServer(proxy_settings(engine.url)) as proxy,
    ):
        eventually(lambda: publisher.is_subscribed)
        eventually(lambda: "connected" in stream_of(proxy)["reason"])
        assert logged() == 0  # nobody has asked anything yet
        documents = [{"text": f"Document {i}. " * 20} for i in range(2)]
        body = {**BODY, "ragboost": {"documents": documents}}
        assert httpx.post(f"{proxy.url}/v1/chat/completions", json=body).status_code == 200
        eventually(logged, equals=1)


def test_a_stream_with_events_has_no_reason() -> None:
    with FakeEngine(events=True) as engine, ProxyServer(proxy_settings(engine.url)) as proxy:
        eventually(lambda: stream_of(proxy)["state"] == "exact")
        assert "reason" not in stream_of(proxy)


def test_an_engine_that_listens_on_all_addresses_is_not_told_to_do_so(unused_port: int) -> None:
    publisher = EventPublisher(
        f"tcp://127.0.0.1:{unused_port}", is_connecting=True, announced=f"tcp://*:{unused_port}"
    )
    with (
        FakeEngine(events=publisher) as engine,
        ProxyServer(proxy_settings(engine.url, router={"health_interval_s": 0.02})) as proxy,
    ):
        eventually(lambda: "reason" in stream_of(proxy))
        reason = stream_of(proxy)["reason"]
        assert "tcp://" not in reason
        assert "open the port" in reason
        engine.stop()
        eventually(lambda: stream_of(proxy)["reason"], equals="the backend is down")
