"""Real servers with a small KV cache: what they report as cached is what the mirror predicted."""

import random
from collections.abc import Iterator

import pytest

from ragboost.cache_sync.discovery import DISCOVERY_PATHS, find_sources
from ragboost.cache_sync.event_stream import EventStream, StreamState
from ragboost.cache_sync.report_receiver import ReportReceiver
from ragboost.cache_sync.subscriber import Subscriber
from ragboost.requests.wires.usage import read_usage
from tests.engines.conftest import KINDS, require
from tests.engines.report_route import report_route
from tests.engines.servers import EngineServer, Kind
from tests.eventually import eventually

pytestmark = [pytest.mark.real_engine, pytest.mark.timeout(600)]


@pytest.fixture(scope="module", params=KINDS)
def server(request: pytest.FixtureRequest) -> Iterator[EngineServer]:
    """An engine as it is: without chunk reuse, with a cache of 2048 tokens."""
    require(request.param)
    with EngineServer(request.param, cache_tokens=2048) as server:
        yield server


DOCUMENTS = [[100 + 200 * i + j for j in range(90 + 7 * i)] for i in range(16)]


def prompt(dice: random.Random) -> list[int]:
    return [7, 8, 9] + [token for i in dice.sample(range(16), 4) for token in DOCUMENTS[i]]


def hit(stream: EventStream, tokens: list[int], server: EngineServer) -> int:
    """Predict what the engine will report: whole blocks, but never the last token of a prompt."""
    found = stream.mirror.match_tokens(tokens)
    return min(found, (len(tokens) - 1) // server.block_size * server.block_size)


def settle(stream: EventStream, tokens: list[int], server: EngineServer) -> None:
    """Wait until the events of an answered prompt have arrived: they follow its response."""
    stored = len(tokens) // server.block_size * server.block_size
    eventually(lambda: stream.mirror.match_tokens(tokens) >= stored)


def serve(server: EngineServer, stream: EventStream, *, requests: int, seed: int) -> int:
    """Send prompts one by one; returns the number of wrong predictions."""
    dice, wrong = random.Random(seed), 0
    for i in range(requests):
        tokens = prompt(dice)
        predicted = hit(stream, tokens, server)
        usage = read_usage(server.complete(tokens, f"{seed}-{i}"))
        assert usage is not None
        wrong += predicted != usage.cached_tokens
        settle(stream, tokens, server)
    return wrong


def test_the_backend_says_where_its_events_come_from(server: EngineServer) -> None:
    path = DISCOVERY_PATHS[0 if server.kind == "vllm" else 1]
    (found,) = find_sources(server.get(path), backend_url=server.url, name=server.kind)
    assert found.endpoint == server.source.endpoint
    assert found.replay_endpoint == server.source.replay_endpoint
    assert (found.name, found.topic) == (f"{server.kind}/0", "kv@tiny")


def test_every_hit_is_predicted_exactly_while_the_cache_evicts(server: EngineServer) -> None:
    with Subscriber([server.source]) as subscriber:
        stream = subscriber.streams[server.source.name]
        eventually(lambda: stream.state is StreamState.EXACT)
        assert serve(server, stream, requests=40, seed=1) == 0
        assert stream.state is StreamState.EXACT
        assert 0 < stream.mirror.num_resident_tokens <= server.cache_tokens
        assert stream.resident_tokens("1-39") is not None
        stream.mirror.check_integrity()


def test_a_listener_that_comes_late_replays_and_knows_the_same(server: EngineServer) -> None:
    with Subscriber([server.source]) as subscriber:
        stream = subscriber.streams[server.source.name]
        eventually(lambda: stream.state is StreamState.EXACT)
        assert serve(server, stream, requests=5, seed=2) == 0


def test_a_cleared_cache_is_forgotten(server: EngineServer) -> None:
    with Subscriber([server.source]) as subscriber:
        stream = subscriber.streams[server.source.name]
        eventually(lambda: stream.state is StreamState.EXACT)
        server.complete(DOCUMENTS[1] * 3, "before")
        settle(stream, DOCUMENTS[1] * 3, server)
        server.clear_cache()
        server.complete(DOCUMENTS[0] * 3, "after")  # vLLM tells of a reset with its next step
        eventually(lambda: stream.resident_tokens("after") is not None)
        assert stream.mirror.match_tokens(DOCUMENTS[1] * 3) == 0
        assert stream.state is StreamState.EXACT


def test_salted_requests_are_kept_apart(server: EngineServer) -> None:
    with Subscriber([server.source]) as subscriber:
        stream = subscriber.streams[server.source.name]
        eventually(lambda: stream.state is StreamState.EXACT)
        server.clear_cache()
        tokens = DOCUMENTS[3] * 3
        body = {"model": "tiny", "prompt": tokens, "max_tokens": 1, "cache_salt": "tenant"}
        server.post("/v1/completions", body)
        whole = len(tokens) // server.block_size * server.block_size
        eventually(lambda: stream.mirror.match_tokens(tokens, cache_salt="tenant"), equals=whole)
        assert stream.mirror.match_tokens(tokens) == 0


def test_a_killed_and_restarted_engine_is_followed(server: EngineServer) -> None:
    with Subscriber([server.source]) as subscriber:
        stream = subscriber.streams[server.source.name]
        eventually(lambda: stream.state is StreamState.EXACT)
        assert serve(server, stream, requests=4, seed=3) == 0
        server.stop(at_once=True)
        eventually(lambda: stream.state is StreamState.FALLBACK)
        assert stream.resident_tokens("3-3") is None
        server.start()
        eventually(lambda: stream.state is StreamState.EXACT)
        assert stream.mirror.num_resident_tokens == 0
        assert serve(server, stream, requests=4, seed=3) == 0


@pytest.fixture
def receiver() -> Iterator[tuple[ReportReceiver, str]]:
    """A proxy's route for reports, and its address."""
    made = ReportReceiver()
    with report_route(made) as url:
        yield made, url


@pytest.mark.parametrize("kind", KINDS)
def test_the_hook_reports_what_events_would(
    kind: Kind, receiver: tuple[ReportReceiver, str]
) -> None:
    require(kind)
    reports, url = receiver
    with EngineServer(kind, cache_tokens=2048, events="hook", report_url=url) as server:
        server.complete([1] * 100, "first")
        eventually(lambda: bool(reports.streams))
        (stream,) = reports.streams.values()
        eventually(lambda: stream.state is StreamState.EXACT)
        assert serve(server, stream, requests=20, seed=4) == 0
        assert stream.resident_tokens("4-19") is not None
        assert stream.name == ("real/0" if kind == "vllm" else stream.name)
