"""nginx and HAProxy with the files of `deploy/`, in front of two replicas that share Redis."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from scripts.cluster import BALANCERS
from tests.fakes import FakeEngine
from tests.fakes.balancer import Balancer
from tests.fakes.proxy import ProxyServer, proxy_settings
from tests.fakes.redis import PROGRAM, RedisServer
from tests.metrics import read_metric

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="needs redis-server or valkey-server")
DEPLOY = Path(__file__).parents[2] / "deploy"
DOCUMENTS = [f"Document {i}. " + f"about{i} " * 40 for i in range(4)]


class Replicas(NamedTuple):
    """Two proxies behind one address.

    Attributes:
        client: of that address.
        proxies: the replicas.
        engine: their backend.
    """

    client: httpx.Client
    proxies: list[ProxyServer]
    engine: FakeEngine

    def requests(self) -> list[float]:
        """Return the number of completions that each replica has served."""
        return [read_metric(each.url, "ragboost_requests_total") for each in self.proxies]

    def serving(self, before: list[float]) -> set[int]:
        """Return the replicas that have served completions since."""
        return {at for at, num in enumerate(self.requests()) if num > before[at]}


@pytest.fixture(params=BALANCERS)
def replicas(request: pytest.FixtureRequest, engine: FakeEngine) -> Iterator[Replicas]:
    if shutil.which(request.param) is None:
        pytest.skip(f"needs {request.param}")
    with RedisServer() as redis:
        session = {"store": "redis", "url": redis.url}
        settings = proxy_settings(engine.url, session=session)
        proxies = [ProxyServer(settings).__enter__() for _ in range(2)]
        with (
            Balancer(request.param, [each.port for each in proxies]) as balancer,
            httpx.Client(base_url=balancer.url) as client,
        ):
            yield Replicas(client, proxies, engine)
        for proxy in proxies:
            proxy.__exit__()


def ask(client: httpx.Client, messages: list[dict[str, Any]], **headers: str) -> httpx.Response:
    body = {"model": "m", "messages": messages, "ragboost": {"documents": DOCUMENTS}}
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    answer = client.post("/v1/chat/completions", json=body, headers=named)
    assert answer.status_code == 200, answer.text
    return answer


@pytest.mark.parametrize("header", ["x-ragboost-session", "x-session-id", "x-litellm-session-id"])
def test_a_named_conversation_stays_with_one_replica(replicas: Replicas, header: str) -> None:
    used = set()
    for number in range(8):
        before = replicas.requests()
        for turn in range(3):
            ask(
                replicas.client,
                [{"role": "user", "content": f"{turn}?"}],
                **{header: f"conversation {number}"},
            )
        serving = replicas.serving(before)
        assert len(serving) == 1
        used |= serving

    assert used == {0, 1}


def test_unnamed_requests_of_one_client_stay_with_one_replica(replicas: Replicas) -> None:
    used = set()
    for number in range(8):
        before = replicas.requests()
        for _ in range(2):
            ask(
                replicas.client,
                [{"role": "user", "content": "who?"}],
                authorization=f"Bearer key-{number}",
            )
        serving = replicas.serving(before)
        assert len(serving) == 1
        used |= serving

    assert used == {0, 1}


def test_a_chat_session_continues_at_the_other_replica_when_its_own_stops(
    replicas: Replicas,
) -> None:
    created = replicas.client.post("/v1/sessions", json={"model": "m"}).json()
    path = f"/v1/sessions/{created['id']}"

    def turn(number: int) -> None:
        body = {"query": f"turn {number}?", "documents": DOCUMENTS[: 2 + number]}
        answer = replicas.client.post(f"{path}/chat/completions", json=body)
        assert answer.status_code == 200, answer.text

    before = replicas.requests()
    turn(0)
    turn(1)
    (own,) = replicas.serving(before)
    replicas.proxies[own].server.should_exit = True
    replicas.proxies[own]._thread.join()
    turn(2)

    assert replicas.client.get(f"{path}").json()["num_turns"] == 3
    first, second, third = [each.prompt for each in replicas.engine.completions]
    assert second.startswith(first)
    assert third.startswith(second)
    for document in DOCUMENTS:
        assert third.count(document) == 1


def test_a_named_conversation_continues_at_the_other_replica_when_its_own_stops(
    replicas: Replicas,
) -> None:
    before = replicas.requests()
    messages: list[dict[str, Any]] = [{"role": "user", "content": "first?"}]
    answer = ask(replicas.client, messages, x_ragboost_session="one")
    messages += [answer.json()["choices"][0]["message"], {"role": "user", "content": "second?"}]
    (own,) = replicas.serving(before)
    replicas.proxies[own].server.should_exit = True
    replicas.proxies[own]._thread.join()

    for _ in range(3):  # the balancer may not know yet
        ask(replicas.client, messages, x_ragboost_session="one")

    last = replicas.engine.completions[-1].prompt
    for document in DOCUMENTS:
        assert document in last


def test_a_stream_is_not_held_back(replicas: Replicas) -> None:
    replicas.engine.misbehave(hold_after_chunks=1)
    body = {"model": "m", "messages": [{"role": "user", "content": "who?"}], "stream": True}

    with replicas.client.stream("POST", "/v1/chat/completions", json=body) as stream:
        lines = stream.iter_lines()
        assert next(lines)
        replicas.engine.release()
        assert [line for line in lines if line][-1] == "data: [DONE]"


def test_a_large_body_passes(replicas: Replicas) -> None:
    ask(replicas.client, [{"role": "user", "content": "x" * 3_000_000}])

    assert len(replicas.engine.completions[-1].body) > 3_000_000


def test_the_files_name_the_same_headers_in_the_same_order() -> None:
    headers = ["x-ragboost-session", "x-session-id", "x-litellm-session-id"]
    nginx = (DEPLOY / "nginx.conf").read_text("utf-8")
    haproxy = (DEPLOY / "haproxy.cfg").read_text("utf-8")
    envoy = (DEPLOY / "envoy.yaml").read_text("utf-8")
    names = ["$http_" + each.replace("-", "_") for each in headers]
    positions = [nginx.index(f"map {name} ") for name in names]
    assert positions == sorted(positions, reverse=True)  # the last map asks first
    positions = [haproxy.index(f"req.fhdr({each})") for each in headers]
    assert positions == sorted(positions, reverse=True)  # the last rule wins
    positions = [envoy.index(f"header_name: {each}") for each in headers]
    assert positions == sorted(positions)
