"""Backends come and go while the proxy runs: from a file, or from DNS."""

import asyncio
import json
import os
import socket
import threading
from base64 import b64encode
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from ragboost.booster.tenants import Tenant, TenantKey, Tenants
from ragboost.config import Settings
from ragboost.config.proxy import public_url
from ragboost.errors import ConfigError
from ragboost.proxy.routing.admission import RoutingRequest
from ragboost.proxy.routing.dispatcher import Dispatcher
from ragboost.proxy.upstream import backends as backends_module
from ragboost.proxy.upstream.backends import Backends
from ragboost.types import Document, Request
from tests.eventually import DEADLINE_S, eventually, run_event_loop
from tests.fakes import FakeEngine
from tests.fakes.proxy import ProxyServer

Start = Callable[..., ProxyServer]
FAST = {"health_interval_s": 0.02}
DOCUMENTS = [{"text": f"Document {at}. " + "Fact of many. " * 40} for at in range(3)]


@pytest.fixture
def other() -> Iterator[FakeEngine]:
    with FakeEngine() as engine:
        yield engine


def write(path: Path, *urls: str, contents: str = "") -> None:
    new = path.with_suffix(".new")
    new.write_text(contents or json.dumps(urls))
    os.replace(new, path)


def ask(proxy: ProxyServer, **fields: object) -> httpx.Response:
    body = {"model": "m", "messages": [{"role": "user", "content": "why?"}], **fields}
    return httpx.post(f"{proxy.url}/v1/chat/completions", json=body)


def shown(proxy: ProxyServer) -> set[str]:
    lines = httpx.get(f"{proxy.url}/metrics").text.splitlines()
    return {
        line.partition('"')[2].partition('"')[0]
        for line in lines
        if line.startswith("ragboost_backend_up{")
    }


def name_of(engine: FakeEngine) -> str:
    return engine.url.partition("://")[2]


def test_an_added_backend_gets_requests_and_a_removed_one_gets_no_more(
    start_proxy: Start, engine: FakeEngine, other: FakeEngine, tmp_path: Path
) -> None:
    path = tmp_path / "backends.json"
    write(path, engine.url)
    proxy = start_proxy(backend={"file": path}, router=FAST)
    assert ask(proxy).status_code == 200
    write(path, engine.url, f"{other.url}/", other.url)  # twice the same
    eventually(lambda: shown(proxy), equals={name_of(engine), name_of(other)})
    for at in range(4):
        messages = [{"role": "user", "content": f"{at} times why?"}]
        assert ask(proxy, messages=messages).status_code == 200
    assert other.requests

    engine.misbehave(hold=True)
    answers: list[int] = []
    write(path, engine.url)
    eventually(lambda: shown(proxy), equals={name_of(engine)})
    thread = threading.Thread(target=lambda: answers.append(ask(proxy).status_code))
    thread.start()
    eventually(lambda: engine.num_active, equals=1)
    write(path, other.url)
    eventually(lambda: shown(proxy), equals={name_of(other)})
    num_requests = len(engine.requests)
    for _ in range(4):
        assert ask(proxy).status_code == 200
    assert len(engine.requests) == num_requests
    engine.release()
    thread.join()
    assert answers == [200]  # what a removed backend computes may end


def test_a_removed_backend_is_forgotten_and_starts_empty_when_it_returns(
    start_proxy: Start, engine: FakeEngine, other: FakeEngine, tmp_path: Path
) -> None:
    path = tmp_path / "backends.json"
    write(path, engine.url)
    proxy = start_proxy(backend={"file": path}, router=FAST)

    def predicted() -> int:
        answer = ask(proxy, ragboost={"documents": DOCUMENTS})
        return int(answer.headers["x-ragboost-cached-tokens-predicted"])

    assert predicted() == 0
    assert predicted() > 100
    write(path, other.url)
    eventually(lambda: shown(proxy), equals={name_of(other)})
    assert predicted() == 0
    eventually(lambda: name_of(engine) not in proxy.app.state.cache_sync.followers)
    write(path, engine.url)
    eventually(lambda: shown(proxy), equals={name_of(engine)})
    assert predicted() == 0


def test_requests_that_wait_for_a_removed_backend_go_to_another(
    start_proxy: Start, engine: FakeEngine, other: FakeEngine, tmp_path: Path
) -> None:
    path = tmp_path / "backends.json"
    write(path, engine.url)
    proxy = start_proxy(backend={"file": path, "max_concurrency": 1}, router=FAST)
    engine.misbehave(hold=True)
    answers: list[int] = []
    threads = [
        threading.Thread(target=lambda: answers.append(ask(proxy).status_code)) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    eventually(lambda: "ragboost_queue_depth 2.0" in httpx.get(f"{proxy.url}/metrics").text)
    write(path, other.url)
    eventually(lambda: len(answers), equals=2)
    engine.release()
    for thread in threads:
        thread.join()
    assert (answers, len(engine.requests), len(other.requests)) == ([200] * 3, 1, 2)


@pytest.mark.parametrize("contents", ['["http://127.0.0.1:1", "http://127.', "[]", "{}", '["x"]'])
async def test_a_list_that_cannot_be_used_leaves_the_last_one(
    contents: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "backends.json"
    write(path, "http://user:secret@127.0.0.1:1")
    settings = Settings.model_validate({"backend": {"file": path}})
    backends = Backends.of(settings)
    write(path, contents=contents)
    for _ in range(2):
        for source in backends.sources:
            await source.refresh()
    assert [backend.name for backend in backends.all] == ["127.0.0.1:1"]
    assert caplog.text.count("still counts") == 1
    assert "secret" not in caplog.text
    with pytest.raises(ConfigError, match="must be a JSON list of"):
        Backends.of(settings)


async def test_a_flood_of_backends_is_bounded_and_keeps_those_that_there_are(
    tmp_path: Path,
) -> None:
    path = tmp_path / "backends.json"
    write(path, "http://z:1")
    settings = Settings.model_validate({"backend": {"file": path}})
    backends = Backends.of(settings)
    for start in (0, 10_000):  # all of them are others the second time
        urls = [f"http://a:{port}" for port in range(start + 1, start + 1000)]
        backends.follow(settings, ["http://z:1", *urls])
        await backends.refresh()
        assert len(backends.all) + len(backends.draining) == 256
        assert backends.all[0].name == "z:1"
        assert len({each.number for each in backends.all}) == len(backends.all)


async def test_a_backend_that_returns_while_its_requests_end_is_the_same() -> None:
    settings = Settings.model_validate({"backend": {"dns": True}})
    backends = Backends.of(settings)
    removed: list[str] = []
    backends.on_removed.append(lambda backend: removed.append(backend.name))
    backends.follow(settings, ["http://a:1", "http://b:1"])
    first = backends.all[0]
    first.add_load(assigned=1)
    backends.follow(settings, ["http://b:1"])
    await backends.refresh()
    assert (removed, first.is_healthy) == ([], False)
    backends.follow(settings, ["http://b:1", "http://a:1"])
    assert first in backends.all
    assert first.is_healthy
    backends.follow(settings, ["http://b:1"])
    first.add_load(assigned=-1)
    await backends.refresh()
    assert (removed, backends.draining) == (["a:1"], [])


async def test_a_request_that_waited_while_a_backend_was_forgotten_does_not_bring_it_back() -> None:
    settings = Settings.model_validate({"backend": {"dns": True}})
    backends, tenants = Backends.of(settings), Tenants(settings)
    dispatcher = Dispatcher(settings, backends=backends, tenants=tenants)
    backends.follow(settings, ["http://a:1", "http://b:1"])

    async def place(tenant: Tenant) -> None:
        front = Request("why?", (Document("A fact."),))
        request = RoutingRequest(tenant=tenant, find_leading=lambda: front)
        with dispatcher.admission(request) as admission:
            await dispatcher.enter(admission)

    busy, other = (tenants.get(TenantKey("m", salt)) for salt in "ab")
    await place(busy)
    async with busy.lock:  # a thread uses its index
        waiting = asyncio.create_task(place(busy))
        await run_event_loop()
        backends.follow(settings, ["http://b:1"])
        await backends.refresh()
        await place(other)
    await waiting
    assert set(tenants.numbers) == {"b:1"}


async def test_all_addresses_of_a_host_are_backends_and_a_failure_keeps_them(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    answers: list[list[str]] = [["10.0.0.2", "10.0.0.1", "10.0.0.2"], [], ["10.0.0.3"]]

    def look_up(host: str, port: int, *_: object, **__: object) -> list[object]:
        addresses = answers.pop(0)
        if not addresses:
            raise socket.gaierror(socket.EAI_AGAIN, "no answer")
        both = [(socket.AF_INET, each) for each in addresses] + [(socket.AF_INET6, "fd00::1")]
        return [(family, None, 6, "", (each, port)) for family, each in both]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    settings = Settings.model_validate({"backend": {"dns": True, "url": "http://vllm.svc:8000/v1"}})
    backends = Backends.of(settings)
    names = []
    for _ in range(3):
        await backends.sources[0].refresh()
        names.append([backend.name for backend in backends.all])
    assert names == [["10.0.0.1:8000", "10.0.0.2:8000"]] * 2 + [["10.0.0.3:8000"]]
    assert caplog.text.count("the last addresses still count") == 1


async def test_a_lookup_that_hangs_takes_one_thread_and_counts_when_it_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    may_answer, asked = threading.Event(), threading.Semaphore(0)

    def look_up(host: str, port: int, *_: object, **__: object) -> list[object]:
        asked.release()
        may_answer.wait()
        return [(socket.AF_INET, None, 6, "", ("10.0.0.1", port))]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr(backends_module, "_TIMEOUT_S", 0.01)
    settings = Settings.model_validate({"backend": {"dns": True, "url": "http://vllm.svc:8000"}})
    backends = Backends.of(settings)
    try:
        for _ in range(5):
            await backends.sources[0].refresh()
        assert asked.acquire(timeout=DEADLINE_S)
        assert not asked.acquire(blocking=False)
        assert backends.all == []
    finally:
        may_answer.set()
    monkeypatch.setattr(backends_module, "_TIMEOUT_S", DEADLINE_S)
    await backends.sources[0].refresh()
    assert [backend.name for backend in backends.all] == ["10.0.0.1:8000"]


def test_one_server_is_one_backend_however_its_url_is_written() -> None:
    urls = ["http://h", "http://H:80/v1/", "HTTP://h:80", "http://me:pw@h:", "http://h:8080"]
    urls += ["http://h:00080", "http://h.", "http://h/./v1", "http://h//v1/", "http://h/a/../v1"]
    settings = Settings.model_validate({"backend": {"dns": True}})
    backends = Backends.of(settings)
    backends.follow(settings, urls)
    assert [backend.name for backend in backends.all] == ["h", "h:8080"]
    others = {
        "https://h:0443": "https://h",
        "https://[::1]:8443/a": "https://[::1]:8443/a",
        "https://[0:0:0:0:0:0:0:1]:443/a/": "https://[::1]/a",
        "http://127.0.0.1.:08000//a/v1": "http://127.0.0.1:8000/a",
        "http://B\u00fcch.example": "http://xn--bch-hoa.example",
        "http://h/V1": "http://h/V1",
    }
    assert {url: public_url(url) for url in others} == others


def test_a_new_password_of_a_url_is_used(
    start_proxy: Start, engine: FakeEngine, tmp_path: Path
) -> None:
    path = tmp_path / "backends.json"
    write(path, engine.url.replace("://", "://me:old@"))
    proxy = start_proxy(backend={"file": path}, router=FAST)

    def login() -> str | None:
        assert ask(proxy).status_code == 200
        return engine.completions[-1].header("authorization")

    assert login() == "Basic " + b64encode(b"me:old").decode()
    write(path, engine.url.replace("://", "://me:new@"))
    eventually(login, equals="Basic " + b64encode(b"me:new").decode())


def test_without_any_address_yet_a_request_is_told_to_come_back(start_proxy: Start) -> None:
    url = "http://no-such-host.invalid:8000"
    proxy = start_proxy(backend={"url": url, "dns": True}, router=FAST)
    answer = ask(proxy)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert httpx.get(f"{proxy.url}/v1/models").status_code == 503
    assert httpx.get(f"{proxy.url}/ready").status_code == 503


def test_a_name_is_looked_up(start_proxy: Start, engine: FakeEngine) -> None:
    url = engine.url.replace("127.0.0.1", "localhost")
    proxy = start_proxy(backend={"url": url, "dns": True}, router=FAST)
    assert ask(proxy).status_code == 200 or "::1" in next(iter(shown(proxy)))


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"backend": {"dns": True, "url": "https://a"}}, "http"),
        ({"backend": {"dns": True}, "backends": [{"url": "http://a"}]}, "set one of"),
    ],
)
def test_what_cannot_be_looked_up_is_an_error_at_the_start(
    sections: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        Backends.of(Settings.model_validate(sections))
