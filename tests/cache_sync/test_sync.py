"""The proxy's context index follows its engine's prefix cache: real ZeroMQ frames, real HTTP."""

import contextlib
import json
import random
import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import msgspec
import pytest

from ragboost.booster.tenants import TenantKey, Tenants
from ragboost.booster.tokens import TokenCounter
from ragboost.cache_sync.follower import CacheFollower
from ragboost.cache_sync.sync import FidelityTracker
from ragboost.engine_hooks.reports import REPORT_PATH, Report, decode_reply, encode
from ragboost.types import Document
from tests.eventually import eventually
from tests.fakes import FakeEngine, Received
from tests.fakes.events import EventPublisher
from tests.fakes.prefix_cache import tokenize
from tests.fakes.proxy import ProxyServer, proxy_settings
from tests.integrity import check_index
from tests.metrics import read_metric

Frames = list[tuple[int, bytes]]
Deliver = Callable[[int, bytes], Frames]

URL = "/v1/chat/completions"
BLOCK, CACHE = 8, 640
TOLERANCE = 4 * BLOCK  # ends of documents are estimates; a document has 69 tokens
_DOCUMENT = re.compile(r"\[Doc_(\d+)\]\n([a-z ]+)\n\n")
# Words of three letters, so that a token has four bytes and estimated lengths are true.
_WORDS = [a + b + c for a in "bdfgk" for b in "aeiou" for c in "lmnrs"]
DOCUMENTS = [
    Document(" ".join(random.Random(i).choices(_WORDS, k=64)), id=10 + i) for i in range(14)
]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ragboost.cache_sync.follower._CONFIRM_S", 0.1)
    monkeypatch.setattr("ragboost.cache_sync.sync._RETRY_S", 0.1)


def fake_engine(**options: Any) -> FakeEngine:
    return FakeEngine(block_size=BLOCK, capacity_tokens=CACHE, **options)


def start(engine: FakeEngine, **sections: dict[str, Any]) -> ProxyServer:
    return ProxyServer(proxy_settings(engine.url, **{"tokens": {}, **sections}))


def follower_of(proxy: ProxyServer) -> CacheFollower:
    (follower,) = proxy.app.state.cache_sync.followers.values()
    assert isinstance(follower, CacheFollower)
    return follower


def ask(proxy: ProxyServer, numbers: list[int], **fields: Any) -> httpx.Response:
    documents = [{"id": DOCUMENTS[i].id, "text": DOCUMENTS[i].text} for i in numbers]
    messages = [{"role": "user", "content": "why?"}]
    body = {"model": "m", "messages": messages, "ragboost": {"documents": documents}}
    return httpx.post(proxy.url + URL, json={**body, **fields})


def ask_many(proxy: ProxyServer, engine: FakeEngine, *, num: int, seed: int) -> None:
    """Requests that share documents, far more than the cache holds."""
    dice = random.Random(seed)
    for _ in range(num):
        assert ask(proxy, dice.sample(range(len(DOCUMENTS)), 4)).status_code == 200
    settle(proxy, engine)


def settle(proxy: ProxyServer, engine: FakeEngine) -> None:
    """Wait until every batch that was sent is applied."""
    events, follower = engine.events, follower_of(proxy)
    assert events is not None
    eventually(lambda: follower.is_exact and follower.state == "exact")
    (stream,) = follower.streams.values()
    eventually(lambda: stream.next_seq == events.num_published)
    eventually(lambda: follower.is_settled)


def misfits(
    proxy: ProxyServer, received: list[Received], engine: FakeEngine, *, tolerance: int = TOLERANCE
) -> list[str]:
    """Requests of whose documents the index believes more or less than the engine holds."""
    booster = proxy.app.state.cache_sync.tenants.get(TenantKey("m", "")).booster(
        follower_of(proxy).name
    )
    check_index(booster.index)
    found = []
    for request in received:
        cached = engine.cache.match([*tokenize(request.prompt), 0])
        numbers, held = [], 0
        for match in _DOCUMENT.finditer(request.prompt):
            numbers.append(int(match[1]) - 10)
            start, end = (len(tokenize(request.prompt[:at])) for at in match.span(2))
            held += max(0, min(cached, end) - start)
        keys = [DOCUMENTS[i].key for i in numbers]
        believed = booster.index.cached_prefix(keys).cached_tokens
        if abs(believed - held) > tolerance:
            found.append(f"{numbers}: believed {believed}, held {held}")
    return found


def test_the_index_equals_the_engines_cache_after_evictions() -> None:
    with fake_engine(events=True) as engine, start(engine) as proxy:
        eventually(lambda: follower_of(proxy).is_exact)
        ask_many(proxy, engine, num=40, seed=1)

        assert misfits(proxy, engine.completions, engine) == []
        assert any(request.cached_tokens for request in engine.completions)
        sent = engine.completions[-1]
        assert sent.json["session_id"] == sent.header("x-session-id")
        ready = httpx.get(f"{proxy.url}/ready").json()
        (stream,) = ready["kv_events"].values()
        assert stream["state"] == "exact"
        metrics = httpx.get(f"{proxy.url}/metrics").text
        assert re.search(r'ragboost_kv_events_total\{.*type="removed"\} [1-9]', metrics)
        assert re.search(r'ragboost_kv_event_stream_state\{.*state="exact".*\} 1.0', metrics)
        assert "ragboost_prediction_error_ratio_count 40.0" in metrics


def test_a_text_that_begins_alike_before_the_documents_is_no_missed_prediction() -> None:
    with fake_engine(events=True) as engine, start(engine) as proxy:
        eventually(lambda: follower_of(proxy).is_exact)
        for i in range(30):
            system = {"role": "system", "content": "Answer briefly. " * 40 + f"Request {i}."}
            ask(
                proxy,
                [i % 14, (i + 1) % 14],
                messages=[system, {"role": "user", "content": "why?"}],
            )
        settle(proxy, engine)

        assert sum(request.cached_tokens for request in engine.completions) > 1_000
        figures = proxy.app.state.cache_sync.fidelity.read()
        assert figures.precision == figures.recall == 1.0


def lost() -> Deliver:
    return lambda seq, payload: [] if seq % 10 == 7 else [(seq, payload)]


def late() -> Deliver:
    def deliver(seq: int, payload: bytes) -> Frames:
        time.sleep(0.02)
        return [(seq, payload)]

    return deliver


def disordered() -> Deliver:
    held: Frames = []

    def deliver(seq: int, payload: bytes) -> Frames:
        held.insert(0, (seq, payload))
        if len(held) < 4:
            return []
        out = [*held, held[2]]
        held.clear()
        return out

    return deliver


@pytest.mark.parametrize("trouble", [lost, late, disordered])
def test_lost_late_and_disordered_frames_leave_the_index_as_the_cache(
    trouble: Callable[[], Deliver],
) -> None:
    events = EventPublisher(deliver=trouble())
    with fake_engine(events=events) as engine, start(engine) as proxy:
        eventually(lambda: follower_of(proxy).is_exact)
        ask_many(proxy, engine, num=40, seed=2)

        assert misfits(proxy, engine.completions, engine) == []
        metrics = httpx.get(f"{proxy.url}/metrics").text
        has_gaps = re.search(r"ragboost_kv_event_gaps_total\{.*\} [1-9]", metrics) is not None
        assert has_gaps == (trouble is not late)


def test_a_flood_of_events_leaves_the_index_as_the_cache() -> None:
    with fake_engine(events=True) as engine, start(engine) as proxy:
        eventually(lambda: follower_of(proxy).is_exact)
        assert engine.events is not None
        for round_ in range(10):
            for number in range(round_ * 100, round_ * 100 + 100):  # 20 events each
                engine.events.publish_events(foreign_events(10, first=1_000_000 + 10 * number))
            ask_many(proxy, engine, num=4, seed=round_)
        (stream,) = follower_of(proxy).streams.values()
        assert stream.counts["num_stored"] >= 10_000
        assert misfits(proxy, engine.completions, engine) == []


def foreign_events(num: int, *, first: int) -> list[dict[str, Any]]:
    """Blocks that others stored and lost again at once."""
    hashes = range(first, first + num)
    stored = [
        {
            "type": "BlockStored",
            "block_hashes": [block_hash],
            "parent_block_hash": None,
            "token_ids": [block_hash] * BLOCK,
            "block_size": BLOCK,
            "medium": "GPU",
            "group_idx": 0,
            "kv_cache_spec_kind": "full_attention",
        }
        for block_hash in hashes
    ]
    return stored + [
        {"type": "BlockRemoved", "block_hashes": [block_hash], "medium": "GPU", "group_idx": 0}
        for block_hash in hashes
    ]


def test_a_cleared_cache_is_forgotten() -> None:
    with fake_engine(events=True) as engine, start(engine) as proxy:
        eventually(lambda: follower_of(proxy).is_exact)
        ask_many(proxy, engine, num=5, seed=3)
        engine.cache.clear()
        settle(proxy, engine)

        assert misfits(proxy, engine.completions, engine) == []
        assert ask(proxy, [0, 1]).headers["x-ragboost-cached-tokens-predicted"] == "0"


def test_a_malformed_event_empties_the_index_until_the_cache_is_known_again() -> None:
    with fake_engine(events=True) as engine, start(engine) as proxy:
        assert engine.events is not None
        eventually(lambda: follower_of(proxy).is_exact)
        ask_many(proxy, engine, num=5, seed=3)
        tenant = proxy.app.state.cache_sync.tenants.get(TenantKey("m", ""))
        index = tenant.booster(follower_of(proxy).name).index
        assert index.num_nodes

        engine.events.publish_payload(msgspec.msgpack.encode([1.0, [["BlockStored", 2**64 - 1]]]))
        eventually(lambda: not follower_of(proxy).is_exact)
        eventually(lambda: not index.num_nodes)
        assert read_metric(proxy.url, "ragboost_kv_event_rejected_frames_total") == 1

        engine.cache.clear()
        ask_many(proxy, engine, num=5, seed=4)
        assert misfits(proxy, engine.completions, engine) == []


def test_a_killed_and_restarted_engine_is_followed() -> None:
    with fake_engine(events=True) as engine:
        assert engine.events is not None
        endpoint, replay_endpoint = engine.events.endpoint, engine.events.replay_endpoint
        http_port = int(engine.url.rpartition(":")[2])
        with start(engine) as proxy:
            eventually(lambda: follower_of(proxy).is_exact)
            ask_many(proxy, engine, num=10, seed=4)
            engine.stop()
            eventually(lambda: not follower_of(proxy).is_exact)
            assert ask(proxy, [0, 1]).status_code == 502
            events = EventPublisher(endpoint, replay_endpoint=replay_endpoint)
            with fake_engine(events=events, port=http_port) as again:
                eventually(lambda: follower_of(proxy).is_exact)
                settle(proxy, again)
                assert misfits(proxy, engine.completions, again) == []
                ask_many(proxy, again, num=10, seed=4)
                assert misfits(proxy, again.completions, again) == []


def test_a_restarted_proxy_believes_nothing_that_is_not_so() -> None:
    with fake_engine(events=True) as engine:
        with start(engine) as proxy:
            eventually(lambda: follower_of(proxy).is_exact)
            ask_many(proxy, engine, num=10, seed=5)
        with start(engine) as proxy:
            eventually(lambda: follower_of(proxy).is_exact)
            before = len(engine.completions)
            ask_many(proxy, engine, num=40, seed=6)
            since = engine.completions[before:]
            known = [r for r in since if r.cached_tokens < r.prompt_tokens - 3 * BLOCK]
            assert misfits(proxy, known, engine) == []


@pytest.mark.parametrize("failure", [{"status": 500}, {"drop": True}, {"die_after_chunks": 0}])
def test_a_request_that_failed_is_not_believed_to_be_cached(failure: dict[str, Any]) -> None:
    with fake_engine(events=True) as engine, start(engine) as proxy:
        eventually(lambda: follower_of(proxy).is_exact)
        assert ask(proxy, [0, 1]).status_code == 200
        settle(proxy, engine)
        engine.misbehave(computes=False, **failure)
        with contextlib.suppress(httpx.RemoteProtocolError):
            ask(proxy, [0, 1, 4, 5], stream=True)
        engine.behave()
        settle(proxy, engine)
        assert misfits(proxy, engine.completions, engine) == []
        again = ask(proxy, [0, 1, 4, 5]).headers["x-ragboost-cached-tokens-predicted"]
        assert abs(int(again) - 2 * 69) < TOLERANCE
        assert ask(proxy, [6, 5]).headers["x-ragboost-cached-tokens-predicted"] == "0"


def test_what_requests_in_flight_will_evict_is_not_predicted() -> None:
    with fake_engine(events=True) as engine, start(engine) as proxy:
        eventually(
            lambda: follower_of(proxy).is_exact and follower_of(proxy).capacity_tokens == CACHE
        )
        assert ask(proxy, [0, 1]).status_code == 200
        assert ask(proxy, [2, 3]).status_code == 200
        settle(proxy, engine)
        engine.misbehave(computes=False, hold=True, status=503)
        with ThreadPoolExecutor(4) as pool:
            # 828 tokens on their way to a cache of 640 that holds 276.
            asked = [pool.submit(ask, proxy, numbers) for numbers in ([4, 5, 6, 7], [8, 9, 10, 11])]
            eventually(lambda: engine.num_active == 2)
            in_time = pool.submit(ask, proxy, [3, 2, 12, 13])
            eventually(lambda: engine.num_active == 3)
            late = pool.submit(ask, proxy, [0, 1])
            eventually(lambda: engine.num_active == 4)
            engine.release()
            told = [
                int(each.result().headers["x-ragboost-cached-tokens-predicted"])
                for each in (*asked, in_time, late)
            ]
        assert told[:2] == [0, 0]
        assert 0 < told[2] <= 2 * 69  # the latest of what is cached, and some of it goes
        assert told[3] < 32  # the oldest
        engine.behave()
        settle(proxy, engine)  # nothing was computed, so nothing was evicted
        assert int(ask(proxy, [0, 1]).headers["x-ragboost-cached-tokens-predicted"]) > 100


def test_a_backend_that_comes_late_is_found(unused_port: int) -> None:
    settings = proxy_settings(f"http://127.0.0.1:{unused_port}")
    with ProxyServer(settings) as proxy:
        assert follower_of(proxy).state is None
        with fake_engine(events=True, port=unused_port) as engine:
            eventually(lambda: follower_of(proxy).is_exact)
            ask_many(proxy, engine, num=5, seed=7)
            assert misfits(proxy, engine.completions, engine) == []


def test_a_callers_session_id_stays_and_its_latest_documents_are_followed() -> None:
    with fake_engine(events=True) as engine, start(engine) as proxy:
        eventually(lambda: follower_of(proxy).is_exact)
        for numbers in ([0, 1, 2], [3, 4, 5]):
            ask(proxy, numbers, session_id="theirs")
            settle(proxy, engine)
        assert engine.completions[-1].json["session_id"] == "theirs"
        assert engine.completions[-1].header("x-session-id") is None
        assert misfits(proxy, engine.completions[-1:], engine) == []
        first, second = (ask(proxy, numbers) for numbers in ([0, 1, 2], [3, 4, 5]))
        assert first.headers["x-ragboost-cached-tokens-predicted"] == "0"
        assert int(second.headers["x-ragboost-cached-tokens-predicted"]) > 100


def test_without_events_bodies_are_not_tagged_and_the_capacity_is_the_backends() -> None:
    with fake_engine() as engine, start(engine) as proxy:
        eventually(lambda: follower_of(proxy).capacity_tokens == CACHE)
        ask(proxy, [0, 1])
        assert "session_id" not in engine.completions[-1].json
        eventually(lambda: index_capacity(proxy) == CACHE)


def index_capacity(proxy: ProxyServer) -> int | None:
    tenant = proxy.app.state.cache_sync.tenants.get(TenantKey("m", ""))
    capacity: int | None = tenant.booster(follower_of(proxy).name).index.capacity_tokens
    return capacity


def test_lengths_are_asked_of_the_backend_once_and_places_become_exact() -> None:
    with fake_engine(events=True) as engine, start(engine) as proxy:
        eventually(lambda: follower_of(proxy).is_exact and tenants_of(proxy).is_counting)
        tokens = tokens_of(proxy)
        keys = [document.key for document in DOCUMENTS]
        ask(proxy, list(range(14)))
        eventually(lambda: tokens.are_exact(keys))
        ask_many(proxy, engine, num=20, seed=9)
        asked = [json.loads(r.body) for r in engine.requests if r.path == "/tokenize"]
        labels = [f"\n\n[Doc_{document.id}]\n" for document in DOCUMENTS]
        texts = [document.text for document in DOCUMENTS]
        assert sorted(each["prompt"] for each in asked) == sorted(labels + texts)
        assert asked[0].keys() == {"model", "prompt", "add_special_tokens"}
        # A block more or less, and the label in front of a document that begins in it.
        assert misfits(proxy, engine.completions, engine, tolerance=2 * BLOCK) == []


def test_with_counted_lengths_labels_hints_and_a_system_prompt_are_predicted() -> None:
    """Tokens of labels and hints were taken for tools in front of the documents."""
    system = {"role": "system", "content": " ".join(_WORDS[:20])}
    with FakeEngine(block_size=BLOCK, capacity_tokens=20_000, events=True) as engine:
        with start(engine) as proxy:
            eventually(lambda: follower_of(proxy).is_exact and tenants_of(proxy).is_counting)
            ask(proxy, list(range(14)))
            eventually(lambda: tokens_of(proxy).are_exact(document.key for document in DOCUMENTS))
            labels = [f"\n\n[Doc_{document.id}]\n" for document in DOCUMENTS]
            eventually(lambda: tokens_of(proxy).are_exact(labels))
            proxy.app.state.cache_sync.fidelity = tracker = FidelityTracker()
            dice, question = random.Random(4), {"role": "user", "content": "why?"}
            for count in range(1, 21):
                ask(proxy, dice.sample(range(14), 10), messages=[system, question])
                eventually(lambda: tracker.read().num_requests == count)  # noqa: B023
                settle(proxy, engine)
        figures = tracker.read()
        assert any(request.cached_tokens < 64 for request in engine.completions[2:])
        assert figures.precision > 0.97, figures
        assert figures.recall > 0.97, figures


def test_a_backend_that_refuses_to_tokenise_is_asked_once() -> None:
    with fake_engine(events=True) as engine, start(engine) as proxy:
        eventually(lambda: tenants_of(proxy).is_counting)
        engine.misbehave(status=404)
        ask(proxy, [0, 1])
        eventually(lambda: not tenants_of(proxy).is_counting)
        for numbers in ([2, 3], [4, 5]):
            ask(proxy, numbers)
        assert tokens_of(proxy).take_wanted(1) == []
        assert len([r for r in engine.requests if r.path == "/tokenize"]) == 1
        assert not tokens_of(proxy).are_exact([DOCUMENTS[0].key])


@pytest.mark.parametrize("is_hosted", [True, False], ids=["hosted", "off"])
def test_hosted_apis_are_not_asked_for_tokens(is_hosted: bool) -> None:
    with (
        FakeEngine(block_size=BLOCK, capacity_tokens=None if is_hosted else CACHE) as engine,
        start(engine, tokens={"ask_backend": is_hosted}) as proxy,
    ):
        ask(proxy, [0, 1])
        if is_hosted:
            tenants_of(proxy).is_counting = True
            eventually(
                lambda: not tenants_of(proxy).is_counting
            )  # the tokenizer has looked for an engine
        assert "/tokenize" not in [r.path for r in engine.requests]


def tenants_of(proxy: ProxyServer) -> Tenants:
    tenants = proxy.app.state.cache_sync.tenants
    assert isinstance(tenants, Tenants)
    return tenants


def tokens_of(proxy: ProxyServer) -> TokenCounter:
    return tenants_of(proxy).get(TenantKey("m", "")).tokens


def test_usage_alone_corrects_an_index_that_believes_too_much() -> None:
    with fake_engine() as engine, start(engine) as proxy:
        for numbers in ([0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]):
            ask(proxy, numbers)
        engine.cache.clear()
        missed = ask(proxy, [9, 10, 11])
        assert int(missed.headers["x-ragboost-cached-tokens-predicted"]) > 100
        assert engine.completions[-1].cached_tokens == 0
        eventually(
            lambda: ask(proxy, [0, 1, 2]).headers["x-ragboost-cached-tokens-predicted"] == "0"
        )
        assert int(ask(proxy, [9, 10]).headers["x-ragboost-cached-tokens-predicted"]) > 100


def test_hook_reports_are_followed_over_http() -> None:
    with fake_engine(events=True) as engine:
        events = engine.events
        assert events is not None
        with start(engine) as proxy:
            url = proxy.url + REPORT_PATH

            def report(report: Report) -> int | None:
                answer = httpx.post(url, content=encode(report))
                assert answer.status_code == 200, answer.text
                return decode_reply(answer.content).replay_from

            hello = Report(stream="replica/0", epoch="e")
            assert report(hello) == 0
            report(Report(stream="replica/0", epoch="e", is_replay=True, is_last=True))
            eventually(lambda: follower_of(proxy).is_exact)
            dice = random.Random(8)
            for _ in range(20):
                ask(proxy, dice.sample(range(len(DOCUMENTS)), 4))
                eventually(lambda: events.num_published >= 0)
                (stream,) = follower_of(proxy).streams.values()
                fresh = [frame for frame in events.frames if frame[0] >= stream.next_seq]
                assert report(Report(stream="replica/0", epoch="e", batches=fresh)) is None
            settle(proxy, engine)
            assert misfits(proxy, engine.completions, engine) == []
            assert engine.completions[-1].json["session_id"]


@pytest.mark.parametrize("body", [b"", b"\xc1", msgspec.msgpack.encode({"stream": 3})])
def test_what_is_no_report_is_refused(body: bytes) -> None:
    with fake_engine() as engine, start(engine, proxy={"max_body_bytes": 2048}) as proxy:
        answer = httpx.post(proxy.url + REPORT_PATH, content=body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "body")
        assert httpx.post(proxy.url + REPORT_PATH, content=bytes(4096)).status_code == 413


def test_a_report_must_name_a_backend_where_there_are_several() -> None:
    with fake_engine() as engine:
        backends = [{"url": engine.url, "name": "one"}, {"url": engine.url, "name": "two"}]
        settings = proxy_settings(engine.url, backends=backends)  # type: ignore[arg-type]
        with ProxyServer(settings) as proxy:

            def report(stream: str) -> httpx.Response:
                body = encode(Report(stream=stream, epoch="e"))
                return httpx.post(proxy.url + REPORT_PATH, content=body)

            refused = report("three/0")
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, "stream")
            assert report("two/0").status_code == 200
            followers = proxy.app.state.cache_sync.followers
            assert [len(followers[name].streams) for name in ("one", "two")] == [0, 1]
