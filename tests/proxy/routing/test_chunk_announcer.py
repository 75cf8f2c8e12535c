"""A request that waits is announced to its backend, whose chunks load meanwhile."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from ragboost.proxy.routing import chunk_announcer
from tests.eventually import DEADLINE_S, eventually
from tests.fakes import FakeEngine
from tests.fakes.proxy import ProxyServer, proxy_settings
from tests.metrics import read_metric

LOADS = {"is_possible": True, "default": "approx", "ratio": 0.15, "prefetch": True}
TEXTS = ["The lease was signed by Anna.", "The roof was mended in May."]
TAGGED = "".join(f"<document>{text}</document>\n" for text in TEXTS) + "Who signed?"


def body(**fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": TAGGED}], **fields}


def post(url: str, fields: dict[str, Any]) -> None:
    httpx.post(f"{url}/v1/chat/completions", json=fields).raise_for_status()


@contextmanager
def waiting(engine: FakeEngine, *requests: dict[str, Any], **backend: Any) -> Iterator[ProxyServer]:
    """Run a proxy in which these requests wait behind another one, until the block ends."""
    settings = proxy_settings(engine.url, backend={"max_concurrency": 1, **backend})
    with ProxyServer(settings) as proxy:
        eventually(lambda: proxy.app.state.chunk_reuse.is_supported)
        engine.misbehave(hold=True)
        bodies = [{"messages": [{"role": "user", "content": "Hello"}]}, *requests]
        threads = [threading.Thread(target=post, args=(proxy.url, each)) for each in bodies]
        threads[0].start()
        eventually(lambda: engine.num_active, equals=1)
        for thread in threads[1:]:
            thread.start()
        eventually(lambda: read_metric(proxy.url, "ragboost_queue_depth"), equals=len(requests))
        try:
            yield proxy
        finally:
            engine.release()
            for thread in threads:
                thread.join()


def spans(announced: Any) -> list[str]:
    texts = [message["content"] for message in announced["messages"]]
    return [texts[at][start:stop] for at, start, stop in announced["ragboost"]["chunks"]]


def num_announced(proxy: ProxyServer, result: str) -> float:
    return read_metric(proxy.url, "ragboost_chunk_announcements_total", result=result)


@pytest.mark.parametrize(
    "fields",
    [
        body(cache_salt="mine"),
        {
            "messages": [{"role": "user", "content": "Who signed?"}],
            "cache_salt": "mine",
            "ragboost": {"documents": TEXTS},
        },
    ],
    ids=["tags", "object"],
)
def test_a_waiting_request_is_announced_once_with_its_documents(fields: dict[str, Any]) -> None:
    with FakeEngine(chunk_reuse=LOADS) as engine:
        with waiting(engine, fields) as proxy:
            eventually(lambda: num_announced(proxy, "sent"), equals=1)
            assert len(engine.completions) == 1  # the one that it waits for
        announced, sent = engine.prefetches, engine.completions[1].json
    assert [each.path for each in announced] == ["/chunk_prefetch/v1/chat/completions"]
    told = announced[0].json
    assert told["cache_salt"] == "mine"
    assert sorted(spans(told)) == sorted(spans(sent))
    assert [text in span for text, span in zip(TEXTS, spans(told), strict=True)] == [True, True]


@pytest.mark.parametrize(
    ("report", "fields"),
    [
        ({**LOADS, "prefetch": False}, body()),
        ({**LOADS, "default": "exact"}, body()),
        (LOADS, body(ragboost={"reuse": "exact"})),
        (LOADS, {"messages": [{"role": "user", "content": "No documents"}]}),
    ],
    ids=["memory only", "exact by default", "exact", "no documents"],
)
def test_what_a_backend_would_not_load_is_not_announced(
    report: dict[str, Any], fields: dict[str, Any]
) -> None:
    with FakeEngine(chunk_reuse=report) as engine:
        with waiting(engine, fields):
            pass
        assert len(engine.completions) == 2
        assert engine.prefetches == []


def test_a_backend_without_the_route_is_asked_once() -> None:
    with FakeEngine(chunk_reuse=LOADS) as engine:
        engine.prefetch_status = 404
        with waiting(engine, body()) as proxy:
            eventually(lambda: num_announced(proxy, "failed"), equals=1)
            waiter = threading.Thread(target=post, args=(proxy.url, body()))
            waiter.start()
            eventually(lambda: read_metric(proxy.url, "ragboost_queue_depth"), equals=2)
            engine.release()
            waiter.join()
        assert len(engine.prefetches) == 1
        assert len(engine.completions) == 3


def test_announcements_that_hang_are_bounded_and_delay_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(chunk_announcer, "_TIMEOUT_S", DEADLINE_S)  # none ends before the last
    with FakeEngine(chunk_reuse=LOADS) as engine:
        engine.prefetch_status = None  # never answers
        with waiting(engine, *[body(user=str(number)) for number in range(11)]) as proxy:
            eventually(lambda: num_announced(proxy, "dropped"), equals=3)
            eventually(lambda: len(engine.prefetches), equals=8)
        assert len(engine.completions) == 12


def test_what_is_large_is_dropped_before_it_takes_a_thread_or_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small = body()
    size = len(json.dumps(small))
    monkeypatch.setattr(chunk_announcer, "_MAX_IN_FLIGHT_BYTES", 3 * size)
    with FakeEngine(chunk_reuse=LOADS) as engine:
        engine.prefetch_status = None  # never answers
        large = body(user="u" * 3 * size)
        with waiting(engine, large, *[small] * 3) as proxy:
            eventually(lambda: num_announced(proxy, "dropped"), equals=1)
            eventually(lambda: len(engine.prefetches), equals=3)
            eventually(lambda: num_announced(proxy, "failed"), equals=3)
            waiter = threading.Thread(target=post, args=(proxy.url, small))
            waiter.start()
            eventually(lambda: len(engine.prefetches), equals=4)  # there is room again
            engine.release()
            waiter.join()
        assert len(engine.completions) == 6
