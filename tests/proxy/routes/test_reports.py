"""`POST /v1/index/events`: who may report, under which names, and what is refused."""

import logging
from collections.abc import Callable
from typing import Any

import httpx
import msgspec
import pytest

from ragboost.cache_events import BlockStored
from ragboost.engine_hooks.reporter import KEY_VARIABLE, URL_VARIABLE, make_reporter
from ragboost.engine_hooks.reports import REPORT_PATH, Report, encode
from ragboost.errors import ConfigError
from ragboost.proxy.app import create_app
from tests.eventually import eventually
from tests.fakes import FakeEngine
from tests.fakes.proxy import ProxyServer, proxy_settings

StartProxy = Callable[..., ProxyServer]
SETTING = "engine_hooks.report_key (RAGBOOST_ENGINE_HOOKS__REPORT_KEY)"
CLIENTS = {"api_keys": ["client"]}


def post(proxy: ProxyServer, body: bytes, *, key: str | None = None) -> httpx.Response:
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    return httpx.post(proxy.url + REPORT_PATH, content=body, headers=headers)


def report(stream: str = "replica/0", **fields: Any) -> bytes:
    return encode(Report(stream=stream, epoch="e", **fields))


def states(proxy: ProxyServer) -> dict[str, str]:
    streams = httpx.get(f"{proxy.url}/ready").json().get("kv_events", {})
    return {name: stream["state"] for name, stream in streams.items()}


def test_reports_need_their_own_key_which_opens_nothing_else(start_proxy: StartProxy) -> None:
    proxy = start_proxy(proxy=CLIENTS, engine_hooks={"report_key": "hook"})

    for key in (None, "client", "wrong"):
        refused = post(proxy, report(), key=key)
        assert refused.status_code == 401
        assert SETTING in refused.json()["error"]["message"]
    assert post(proxy, report(), key="hook").status_code == 200
    assert httpx.get(f"{proxy.url}/v1/models", headers={"x-api-key": "hook"}).status_code == 401


def test_without_a_key_of_their_own_reports_are_refused_where_clients_have_keys(
    start_proxy: StartProxy,
) -> None:
    refused = post(start_proxy(proxy=CLIENTS), report(), key="client")

    assert refused.status_code == 403
    assert SETTING in refused.json()["error"]["message"]


async def test_without_any_key_reports_are_accepted_from_the_same_machine_only(
    engine: FakeEngine,
) -> None:
    app = create_app(proxy_settings(engine.url))

    async def report_from(host: str) -> int:
        transport = httpx.ASGITransport(app, client=(host, 40_000))
        async with httpx.AsyncClient(transport=transport, base_url="http://proxy") as client:
            return (await client.post(REPORT_PATH, content=report())).status_code

    assert [await report_from(host) for host in ("127.0.0.1", "::1")] == [200, 200]
    assert [await report_from(host) for host in ("10.0.0.7", "fe80::1", "")] == [403] * 3


@pytest.mark.parametrize("keys", [["client"], [["another", "client"]]])
def test_a_key_that_clients_have_is_refused_at_the_start(
    engine: FakeEngine, keys: list[str | list[str]]
) -> None:
    clients = {"api_keys": keys}
    settings = proxy_settings(engine.url, proxy=clients, engine_hooks={"report_key": "client"})
    with pytest.raises(ConfigError, match="choose another key"):
        create_app(settings)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc1",
        b"\x91" * 100_000,
        b"\x81\xa1x" + b"\x91" * 100_000 + b"\x00",
        b"\xdd\xff\xff\xff\xff",
        msgspec.msgpack.encode({"stream": "replica/0"}),
        msgspec.msgpack.encode({"stream": 3, "epoch": "e"}),
        msgspec.msgpack.encode({"stream": "r/0", "epoch": "e", "batches": [[-1, b""]]}),
        msgspec.msgpack.encode({"stream": "r/0", "epoch": "e", "batches": [[2**63, b""]]}),
        msgspec.msgpack.encode({"stream": "r/0", "epoch": "e", "batches": [[0, 1]]}),
        report("x" * 10_000 + "/0"),
        encode(Report(stream="replica/0", epoch="e" * 10_000)),
        report(batches=[(i, b"") for i in range(5_000)]),
    ],
)
def test_malformed_reports_are_refused(proxy: ProxyServer, body: bytes) -> None:
    refused = post(proxy, body)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "body")
    assert states(proxy) == {}


@pytest.mark.parametrize("name", ["replica", "replica/", "replica/x", "replica/-1", "replica/256"])
def test_a_stream_needs_a_rank(proxy: ProxyServer, name: str) -> None:
    refused = post(proxy, report(name))
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "stream")


def test_invented_names_do_not_add_streams(proxy: ProxyServer, engine: FakeEngine) -> None:
    with httpx.Client(base_url=proxy.url) as client:
        for i in range(300):
            body = report(f"invented-{i}/0")
            assert client.post(REPORT_PATH, content=body).status_code == 200
    assert list(states(proxy)) == [engine.url.removeprefix("http://") + "/0"]


def test_malformed_batches_in_a_report_are_dropped_and_the_next_are_applied(
    proxy: ProxyServer,
) -> None:
    poison = msgspec.msgpack.encode([1.0, [{"type": "BlockStored", "token_ids": [[]]}]])
    post(proxy, report())  # asks for a replay
    post(proxy, report(is_replay=True, is_last=True))
    assert list(states(proxy).values()) == ["exact"]
    assert post(proxy, report(batches=[(0, poison)])).status_code == 200
    assert list(states(proxy).values()) == ["degraded"]
    cleared = msgspec.msgpack.encode([2.0, [{"type": "AllBlocksCleared"}]])
    assert post(proxy, report(batches=[(1, cleared)])).status_code == 200
    assert list(states(proxy).values()) == ["exact"]


def test_the_hook_shows_the_key_of_its_environment(
    start_proxy: StartProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = start_proxy(proxy=CLIENTS, engine_hooks={"report_key": "hook"})
    monkeypatch.setenv(URL_VARIABLE, proxy.url)
    monkeypatch.setenv(KEY_VARIABLE, "hook")
    reporter = make_reporter(1)
    assert reporter is not None
    reporter.put([BlockStored(block_hashes=[1], token_ids=[1], block_size=1)])
    eventually(lambda: list(states(proxy).values()), equals=["exact"])
    (name,) = states(proxy)
    assert name.endswith("/1")
    reporter.close()


def test_the_hook_logs_why_it_is_refused(
    start_proxy: StartProxy, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(URL_VARIABLE, start_proxy(proxy=CLIENTS).url)
    with caplog.at_level(logging.WARNING, "ragboost.engine_hooks"):
        reporter = make_reporter(0)
        assert reporter is not None
        eventually(lambda: SETTING in caplog.text)
        reporter.close()
