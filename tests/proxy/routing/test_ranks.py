"""A context index per data-parallel rank, and requests that name their rank."""

from collections.abc import Iterator

import httpx
import pytest

from ragboost.cache_events import BlockStored, EventBatch, encode_batch
from ragboost.config import Settings
from ragboost.engine_hooks.reports import Report, encode
from ragboost.proxy.upstream.backends import Backends
from tests.eventually import eventually
from tests.fakes import FakeEngine
from tests.fakes.proxy import ProxyServer, proxy_settings


@pytest.fixture
def engine() -> Iterator[FakeEngine]:
    with FakeEngine(events=True, num_ranks=2) as engine:
        yield engine


@pytest.fixture
def proxy(engine: FakeEngine) -> Iterator[ProxyServer]:
    with ProxyServer(proxy_settings(engine.url, backend={"data_parallel_size": 2})) as proxy:
        eventually(lambda: all(f.is_exact for f in proxy.app.state.cache_sync.followers.values()))
        yield proxy


def ask(proxy: ProxyServer, topic: str, question: str, *, is_reversed: bool = False) -> str:
    """Ask about the documents of a topic; return the backend that was chosen."""
    documents = [f"{topic} {i} " * 50 for i in range(4)]
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": question}],
        "ragboost": {"documents": documents[::-1] if is_reversed else documents},
    }
    answer = httpx.post(
        f"{proxy.url}/v1/chat/completions", json=body, headers={"x-data-parallel-rank": "7"}
    )
    assert answer.status_code == 200, answer.text
    return answer.headers["x-ragboost-backend"].rpartition("#")[2]


def test_each_topic_stays_on_the_rank_that_holds_it(engine: FakeEngine, proxy: ProxyServer) -> None:
    homes = {topic: ask(proxy, topic, "first?") for topic in ("cats", "dogs", "cows", "ants")}
    assert set(homes.values()) == {"0", "1"}
    followers = proxy.app.state.cache_sync.followers
    eventually(lambda: all(follower.is_settled for follower in followers.values()))

    for number in range(3):
        for topic, home in homes.items():
            assert ask(proxy, topic, f"more {number}?", is_reversed=bool(number % 2)) == home

    for received in engine.completions:
        assert received.header("x-data-parallel-rank") in ("0", "1")
    later = engine.completions[len(homes) :]
    assert all(each.cached_tokens > 0.7 * each.prompt_tokens for each in later)


def test_an_index_holds_what_the_events_of_its_rank_say(
    engine: FakeEngine, proxy: ProxyServer
) -> None:
    homes = {ask(proxy, topic, "first?") for topic in ("cats", "dogs")}
    assert homes == {"0", "1"}

    def resident() -> list[int]:
        streams = proxy.app.state.cache_sync.streams
        return [view.stream.mirror.num_resident_tokens for view in streams]

    eventually(resident, equals=[16 * len(cache.blocks) for cache in engine.caches])


def test_a_report_is_for_the_rank_that_it_names(engine: FakeEngine, proxy: ProxyServer) -> None:
    batch = EventBatch(1.0, [BlockStored(block_hashes=[1], token_ids=[1] * 16, block_size=16)])
    report = Report(stream="e/1", epoch="e", batches=[(0, encode_batch(batch))], is_replay=False)

    httpx.post(f"{proxy.url}/v1/index/events", content=encode(report))

    names = [view.stream.name for view in proxy.app.state.cache_sync.streams]
    assert [name.rpartition("#")[2] for name in names] == ["0/0", "1/1"]


def test_ranks_have_names_and_keys_of_their_own(engine: FakeEngine) -> None:
    settings = Settings.model_validate({"backend": {"url": engine.url, "data_parallel_size": 2}})
    backends = Backends.of(settings)

    assert [backend.name.rpartition("#")[2] for backend in backends.all] == ["0", "1"]
    assert len({backend.key for backend in backends.all}) == 2
    assert len({backend.url for backend in backends.all}) == 1
