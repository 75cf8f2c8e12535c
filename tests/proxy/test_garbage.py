"""Requests leave no cycles behind: all that they used is freed when they end.

Cyclic garbage is found by full collections only, which are rare in a process that remembers much.
Until then it would grow by kilobytes with every request.
"""

import gc
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import httpx
import pytest

from tests.eventually import eventually
from tests.fakes import FakeEngine
from tests.fakes.proxy import ProxyServer, proxy_settings
from tests.metrics import read_metric
from tests.sockets import exchange, open_request

URL = "/v1/chat/completions"
DOCUMENTS = [{"id": f"d{i}", "text": f"Document {i}."} for i in range(4)]
CHAT = {"model": "m", "messages": [{"role": "user", "content": "why?"}]}
BOOSTED = {**CHAT, "ragboost": {"documents": DOCUMENTS}}
Ask = Callable[[FakeEngine, ProxyServer, httpx.Client], None]
NUM = 10
_OURS = ("ragboost.", "httptools.")
_MAX_LEFT = 3  # of one type: what the last requests still hold


@pytest.fixture
def proxy(engine: FakeEngine, tmp_path: Path) -> Iterator[ProxyServer]:
    session = {"store": "sqlite", "path": str(tmp_path / "sessions.db")}
    with ProxyServer(proxy_settings(engine.url, session=session)) as server:
        yield server


def garbage() -> Counter[str]:
    """Collect, and return what was found of ours, by type."""
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        gc.collect()
    finally:
        gc.set_debug(0)
    saved = gc.garbage.copy()
    gc.garbage.clear()
    found = Counter(map(_name, saved))
    del saved
    gc.collect()  # what was saved is still a cycle
    return Counter({name: count for name, count in found.items() if name.startswith(_OURS)})


def _name(each: object) -> str:
    if type(each) is FrameType:  # `isinstance` would ask what a weak proxy stood for
        return f"{each.f_globals.get('__name__')}.{each.f_code.co_name} (frame)"
    return f"{type(each).__module__}.{type(each).__qualname__}"


def plain(engine: FakeEngine, proxy: ProxyServer, client: httpx.Client) -> None:
    assert client.post(URL, json=CHAT).status_code == 200


def boosted(engine: FakeEngine, proxy: ProxyServer, client: httpx.Client) -> None:
    assert client.post(URL, json=BOOSTED).status_code == 200


def streamed(engine: FakeEngine, proxy: ProxyServer, client: httpx.Client) -> None:
    response = client.post(URL, json={**BOOSTED, "stream": True})
    assert response.text.rstrip().endswith("[DONE]")


def on_a_connection_of_its_own(
    engine: FakeEngine, proxy: ProxyServer, client: httpx.Client
) -> None:
    assert httpx.post(proxy.url + URL, json=BOOSTED).status_code == 200


def forwarded(engine: FakeEngine, proxy: ProxyServer, client: httpx.Client) -> None:
    assert client.get("/v1/models").status_code == 200


def refused(engine: FakeEngine, proxy: ProxyServer, client: httpx.Client) -> None:
    assert client.post(URL, json={**CHAT, "ragboost": {"documents": 3}}).status_code == 400


def malformed(engine: FakeEngine, proxy: ProxyServer, client: httpx.Client) -> None:
    assert b" 400 " in exchange(proxy.port, b"no http\r\n\r\n")


def status(engine: FakeEngine, proxy: ProxyServer, client: httpx.Client) -> None:
    assert client.get("/ready").status_code == 200


def session(engine: FakeEngine, proxy: ProxyServer, client: httpx.Client) -> None:
    name = client.post("/v1/sessions", json={"model": "m"}).json()["id"]
    for stream in (False, True):
        turn = client.post(f"/v1/sessions/{name}{URL[3:]}", json={**BOOSTED, "stream": stream})
        assert turn.status_code == 200
    assert client.delete(f"/v1/sessions/{name}").status_code == 200


def dropped_by_the_backend(engine: FakeEngine, proxy: ProxyServer, client: httpx.Client) -> None:
    engine.misbehave(drop=True)
    assert client.post(URL, json=BOOSTED).status_code == 502
    engine.behave()


def left_by_the_client(engine: FakeEngine, proxy: ProxyServer, client: httpx.Client) -> None:
    before = read_metric(proxy.url, "ragboost_requests_total", outcome="client_left")
    engine.misbehave(hold_after_chunks=1)
    connection = open_request(proxy.port, URL, {**BOOSTED, "stream": True})
    assert connection.recv(100)
    connection.close()
    left = before + 1
    eventually(
        lambda: read_metric(proxy.url, "ragboost_requests_total", outcome="client_left"),
        equals=left,
    )
    engine.behave()


@pytest.mark.parametrize(
    "ask",
    [
        plain,
        boosted,
        streamed,
        on_a_connection_of_its_own,
        forwarded,
        refused,
        malformed,
        status,
        session,
        dropped_by_the_backend,
        left_by_the_client,
    ],
)
def test_requests_leave_no_cycles(
    engine: FakeEngine,
    proxy: ProxyServer,
    ask: Ask,
) -> None:
    with httpx.Client(base_url=proxy.url) as client:
        ask(engine, proxy, client)  # whatever is made once
        garbage()
        gc.disable()
        try:
            for _ in range(NUM):
                ask(engine, proxy, client)
            found = garbage()
        finally:
            gc.enable()
    assert {name: num for name, num in found.items() if num > _MAX_LEFT} == {}
