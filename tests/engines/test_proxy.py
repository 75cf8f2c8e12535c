"""The proxy in front of real engines: its index follows them, and its predictions come true."""

import random
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from ragboost.config import Settings
from ragboost.proxy.app import create_app
from ragboost.proxy.serving import serve_in_thread
from ragboost.requests.wires.usage import Usage, read_usage
from tests.engines.arrivals import Arrivals
from tests.engines.servers import EngineServer
from tests.eventually import eventually

pytestmark = [pytest.mark.real_engine, pytest.mark.timeout(600)]

WORDS = [
    "the",
    "lease",
    "was",
    "signed",
    "by",
    "a",
    "tenant",
    "whose",
    "name",
    "nobody",
    "could",
    "read",
    "in",
    "this",
    "light",
]
DOCUMENTS = [
    {"id": i, "text": " ".join(random.Random(i).choices(WORDS, k=100 + 10 * (i % 5)))}
    for i in range(16)
]


def ask(client: httpx.Client, dice: random.Random) -> tuple[int, Usage]:
    """Send four documents; returns the cached tokens as predicted, and the usage."""
    body = {
        "model": "tiny",
        "max_tokens": 1,
        "messages": [{"role": "user", "content": "Who signed the lease?"}],
        "ragboost": {"documents": dice.sample(DOCUMENTS, 4)},
    }
    answer = client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    usage = read_usage(answer.json())
    assert usage is not None
    predicted = answer.headers["x-ragboost-cached-tokens-predicted"]
    return int(predicted), usage


def settle(arrivals: Arrivals, usage: Usage) -> None:
    """Wait until the events of the only request in flight have arrived: they follow responses."""
    assert usage.prompt_tokens is not None
    tokens, cached = usage.prompt_tokens, usage.cached_tokens or 0
    eventually(lambda: arrivals.are_complete(prompt_tokens=tokens, cached_tokens=cached))


def test_predictions_come_true_while_the_cache_evicts(server: EngineServer) -> None:
    app = create_app(Settings(backend={"url": server.url}))
    sync = app.state.cache_sync
    (follower,) = sync.followers.values()
    arrivals = Arrivals(follower, block_size=server.block_size)
    dice = random.Random(1)
    with serve_in_thread(app) as url, httpx.Client(base_url=url) as client:
        eventually(lambda: bool(follower.is_exact))
        (stream,) = follower.streams.values()
        num_removed = stream.counts["num_removed"]
        for _ in range(60):
            _, usage = ask(client, dice)
            settle(arrivals, usage)
        eventually(lambda: bool(follower.is_settled))
        assert httpx.get(f"{url}/ready").json()["kv_events"]
        figures = sync.fidelity.read()
        assert figures.num_requests == 60
        assert figures.precision > 0.9, figures
        assert figures.recall > 0.9, figures
        assert stream.counts["num_removed"] > num_removed
        assert sum(tenant.num_nodes for tenant in sync.tenants.all()) > 0
        assert follower.capacity_tokens == pytest.approx(server.cache_tokens, abs=64)


def test_after_many_requests_in_flight_the_index_is_as_true_as_before(server: EngineServer) -> None:
    app = create_app(Settings(backend={"url": server.url}))
    (follower,) = app.state.cache_sync.followers.values()
    arrivals = Arrivals(follower, block_size=server.block_size)
    with serve_in_thread(app) as url, httpx.Client(base_url=url) as client:
        eventually(lambda: bool(follower.is_exact))
        with ThreadPoolExecutor(8) as pool:  # several times what the cache holds
            list(pool.map(lambda number: ask(client, random.Random(number)), range(96)))
        eventually(lambda: bool(follower.is_settled))
        dice, told = random.Random(3), []
        for _ in range(20):
            predicted, usage = ask(client, dice)
            settle(arrivals, usage)
            told.append((predicted, usage.cached_tokens or 0))
        all_predicted, all_reported = map(sum, zip(*told, strict=True))
        both = sum(min(pair) for pair in told)
        assert all_reported > 0
        assert both >= 0.9 * all_predicted, told
        assert both >= 0.9 * all_reported, told
