"""A real vLLM with two data-parallel ranks: both are followed, and requests choose one."""

import httpx
import pytest

from benchmarks.engine_servers import EngineServer
from ragboost.cache_sync.usage import read_usage
from tests.engines.conftest import require
from tests.eventually import SERVER_START_S, eventually
from tests.fakes.proxy import ProxyServer, proxy_settings

pytestmark = [pytest.mark.real_engine, pytest.mark.timeout(600)]

TOPICS = ("cats", "dogs", "cows", "ants")


def ask(proxy: ProxyServer, topic: str, question: str, *, is_reversed: bool) -> tuple[str, float]:
    """Ask about the documents of a topic; return the chosen rank and the cached share."""
    documents = [f"{topic} number {i} has a lease, " * 12 for i in range(4)]
    body = {
        "model": "tiny",
        "max_tokens": 1,
        "messages": [{"role": "user", "content": question}],
        "ragboost": {"documents": documents[::-1] if is_reversed else documents},
    }
    answer = httpx.post(f"{proxy.url}/v1/chat/completions", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    usage = read_usage(answer.json())
    assert usage is not None
    assert usage.prompt_tokens
    rank = answer.headers["x-ragboost-backend"].rpartition("#")[2]
    return rank, (usage.cached_tokens or 0) / usage.prompt_tokens


def test_each_topic_stays_on_the_rank_whose_events_say_that_it_is_there() -> None:
    require("vllm")
    with (
        EngineServer("vllm", cache_tokens=4096, ranks=2) as server,
        ProxyServer(proxy_settings(server.url, backend={"data_parallel_size": 2})) as proxy,
    ):
        followers = list(proxy.app.state.cache_sync.followers.values())
        eventually(lambda: all(each.is_exact for each in followers), within_s=SERVER_START_S)
        homes = {}
        for topic in TOPICS:
            homes[topic], share = ask(proxy, topic, "first?", is_reversed=False)
            assert share < 0.3
            eventually(lambda: all(each.is_settled for each in followers))
        assert set(homes.values()) == {"0", "1"}
        for topic, home in homes.items():
            rank, share = ask(proxy, topic, "again?", is_reversed=True)
            assert rank == home
            assert share > 0.7
        for view in proxy.app.state.cache_sync.streams:
            assert view.stream.status().num_resident_tokens > 0
