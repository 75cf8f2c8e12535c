"""Several backends: where requests go, and what happens when one is down."""

import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from ragboost.booster.tenants import Tenant, TenantKey, Tenants
from ragboost.config import Settings
from ragboost.errors import ConfigError
from ragboost.proxy.app import create_app
from ragboost.proxy.records import SentRequest
from ragboost.proxy.routing import router
from ragboost.proxy.routing.admission import MessagePrefix, RoutingRequest
from ragboost.proxy.routing.dispatcher import Dispatcher
from ragboost.proxy.routing.signals import PrefixAffinity, prefixes_of
from ragboost.proxy.upstream.backends import Backends
from ragboost.requests.formats import make_formats
from ragboost.requests.json_body import JsonBody, chain_links
from ragboost.requests.parsed_request import parse_request
from ragboost.types import Document, Request
from tests.eventually import eventually
from tests.fakes import FakeEngine
from tests.fakes.proxy import ProxyServer, proxy_settings
from tests.metrics import read_metric


@pytest.fixture
def engines() -> Iterator[list[FakeEngine]]:
    with FakeEngine() as one, FakeEngine() as two, FakeEngine() as three:
        yield [one, two, three]


@pytest.fixture(autouse=True)
def light_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client has its answer a moment before its request counts as over."""
    weigh_running(monkeypatch, 10)


def weigh_running(monkeypatch: pytest.MonkeyPatch, tokens: int) -> None:
    """Set the load of a running request, whatever its length."""
    monkeypatch.setattr(router, "_RUNNING_SHARE", 1e9)
    monkeypatch.setattr(router, "_MAX_RUNNING_TOKENS", tokens)


def proxy_for(*urls: str, **sections: Any) -> ProxyServer:
    extra = sections.pop("extra", [{}] * len(urls))
    replicas = [{"url": url, "name": f"e{i}", **extra[i]} for i, url in enumerate(urls)]
    return ProxyServer(proxy_settings("http://unused", backends=replicas, **sections))


def documents(*ids: int) -> list[dict[str, Any]]:
    return [{"id": i, "text": f"Document {i} tells of {i}. " * 40} for i in ids]


def ask(url: str, *ids: int, question: str = "why?", **fields: Any) -> httpx.Response:
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": question}],
        "ragboost": {"documents": documents(*ids)},
        **fields,
    }
    answer = httpx.post(f"{url}/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    return answer


def gauge(proxy: ProxyServer, name: str, backend: str) -> float:
    return read_metric(proxy.url, f"ragboost_backend_{name}", backend=backend)


def counts(engines: list[FakeEngine]) -> list[int]:
    return [len(engine.completions) for engine in engines]


def test_requests_go_where_their_prefix_is_cached(engines: list[FakeEngine]) -> None:
    with proxy_for(*(engine.url for engine in engines)) as proxy:
        homes = {}
        for topic in (10, 20, 30):
            answer = ask(proxy.url, topic, topic + 1, topic + 2)
            homes[topic] = answer.headers["x-ragboost-backend"]
            assert answer.headers["x-ragboost-cached-tokens-predicted"] == "0"
        assert sorted(homes.values()) == ["e0", "e1", "e2"]
        for topic, home in homes.items():
            answer = ask(proxy.url, topic + 2, topic, topic + 1, question="how?")
            assert answer.headers["x-ragboost-backend"] == home
            assert int(answer.headers["x-ragboost-cached-tokens-predicted"]) > 500
            usage = answer.json()["usage"]
            assert usage["prompt_tokens_details"]["cached_tokens"] > 0.8 * usage["prompt_tokens"]


def test_equal_backends_share_the_requests_evenly(engines: list[FakeEngine]) -> None:
    with proxy_for(*(engine.url for engine in engines)) as proxy:
        for i in range(9):
            ask(proxy.url, 100 + 2 * i, 101 + 2 * i)
    assert counts(engines) == [3, 3, 3]


def test_a_hot_prefix_starves_no_replica(
    engines: list[FakeEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    weigh_running(monkeypatch, 600)
    with proxy_for(*(engine.url for engine in engines)) as proxy:
        ask(proxy.url, 1, 2, 3)
        for engine in engines:
            engine.misbehave(hold=True)
        with ThreadPoolExecutor(12) as pool:
            asked = [pool.submit(ask, proxy.url, 1, 2, 3, question=f"{i}?") for i in range(12)]
            eventually(lambda: sum(counts(engines)), equals=13)
            for engine in engines:
                engine.release()
            for answer in asked:
                answer.result()
    assert all(count >= 2 for count in counts(engines))


def test_load_counts_until_the_end_of_a_stream(
    engines: list[FakeEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    weigh_running(monkeypatch, 100_000)
    with proxy_for(*(engine.url for engine in engines[:2])) as proxy:
        home = ask(proxy.url, 1, 2).headers["x-ragboost-backend"]
        at_home = engines[int(home[1:])]
        at_home.misbehave(hold_after_chunks=1)
        body = {
            "model": "m",
            "stream": True,
            "messages": [{"role": "user", "content": "tell"}],
            "ragboost": {"documents": documents(1, 2)},
        }
        url = f"{proxy.url}/v1/chat/completions"
        with httpx.stream("POST", url, json=body) as answer:
            assert answer.headers["x-ragboost-backend"] == home
            chunks = answer.iter_raw()
            next(chunks)
            assert ask(proxy.url, 1, 2, question="b").headers["x-ragboost-backend"] != home
            assert gauge(proxy, "running", home) == 1
            at_home.release()
            list(chunks)
        eventually(lambda: gauge(proxy, "running", home), equals=0)


def test_a_conversation_stays_where_its_history_lives(engines: list[FakeEngine]) -> None:
    with proxy_for(*(engine.url for engine in engines)) as proxy:
        for named in ({}, {"session_id": "s"}):
            history: list[dict[str, str]] = [{"role": "system", "content": f"You are {named}."}]
            homes = []
            for turn in range(4):
                history.append({"role": "user", "content": f"question {turn} " * 50})
                answer = (
                    ask(proxy.url, 60 + turn, messages=history, ragboost=named)
                    if named
                    else (ask(proxy.url, messages=history, ragboost={"documents": []}))
                )
                homes.append(answer.headers["x-ragboost-backend"])
                history.append(answer.json()["choices"][0]["message"])
                ask(proxy.url, 500 + turn)  # another user in between
            assert len(set(homes)) == 1


def test_a_conversation_without_a_name_stays_where_its_documents_were_sent(
    engines: list[FakeEngine],
) -> None:
    with proxy_for(*(engine.url for engine in engines)) as proxy:
        for user in range(3):
            history: list[dict[str, str]] = []
            homes = []
            for turn in range(3):
                numbers = range(700 + 10 * user + turn, 702 + 10 * user + turn)
                texts = [each["text"] for each in documents(*numbers)]
                tags = "\n".join([f"<document>{text}</document>" for text in texts])
                content = f"{tags}\n\n{user} asks {turn}?"
                history.append({"role": "user", "content": content})
                answer = ask(proxy.url, messages=history)
                homes.append(answer.headers["x-ragboost-backend"])
                history.append(answer.json()["choices"][0]["message"])
                ask(proxy.url, 800 + 10 * user + turn)  # another user in between
            assert len(set(homes)) == 1


def test_a_chat_session_stays_where_its_history_lives(engines: list[FakeEngine]) -> None:
    with proxy_for(*(engine.url for engine in engines)) as proxy:
        for name in range(2):
            made = httpx.post(f"{proxy.url}/v1/sessions", json={"model": "m"}).json()
            path = f"{proxy.url}/v1/sessions/{made['id']}/chat/completions"
            homes = []
            for turn in range(3):
                body = {"query": f"{turn}?", "documents": documents(900 + 10 * name + turn)}
                answer = httpx.post(path, json=body)
                homes.append(answer.headers["x-ragboost-backend"])
                ask(proxy.url, 950 + 10 * name + turn)  # another user in between
            assert len(set(homes)) == 1


def test_a_session_may_move_and_keeps_what_it_was_sent(engines: list[FakeEngine]) -> None:
    with proxy_for(engines[0].url, engines[1].url) as proxy:
        history = [{"role": "user", "content": "one?"}]
        first = ask(
            proxy.url,
            messages=history,
            ragboost={"documents": documents(1, 2), "session_id": "s"},
        )
        home = int(first.headers["x-ragboost-backend"][1:])
        engines[home].stop()
        history += [first.json()["choices"][0]["message"], {"role": "user", "content": "two?"}]
        second = ask(
            proxy.url,
            messages=history,
            ragboost={"documents": documents(2, 3), "session_id": "s"},
        )
        assert second.headers["x-ragboost-backend"] == f"e{1 - home}"
        before = engines[home].completions[-1].json["messages"]
        after = engines[1 - home].completions[-1].json["messages"]
        assert after[0] == before[0]
        assert "Document 2 tells" not in after[-1]["content"]


def test_a_refused_connection_goes_to_another_backend(
    engines: list[FakeEngine], unused_port: int
) -> None:
    with proxy_for(f"http://127.0.0.1:{unused_port}", engines[0].url) as proxy:
        answers = [ask(proxy.url, i, i + 50) for i in range(4)]
        assert {answer.headers["x-ragboost-backend"] for answer in answers} == {"e1"}
        assert httpx.get(f"{proxy.url}/v1/models").status_code == 200
        assert gauge(proxy, "up", "e0") == 0
        assert gauge(proxy, "up", "e1") == 1


def test_an_error_status_is_not_sent_to_another_backend(engines: list[FakeEngine]) -> None:
    for engine in engines:
        engine.misbehave(status=503)
    with proxy_for(*(engine.url for engine in engines)) as proxy:
        answer = httpx.post(f"{proxy.url}/v1/chat/completions", json={"messages": []})
    assert answer.status_code == 503
    assert sum(counts(engines)) == 1


def test_a_broken_connection_is_not_sent_to_another_backend(engines: list[FakeEngine]) -> None:
    for engine in engines:
        engine.misbehave(drop=True)
    with proxy_for(*(engine.url for engine in engines)) as proxy:
        answer = httpx.post(f"{proxy.url}/v1/chat/completions", json={"messages": []})
    assert answer.status_code == 502
    assert sum(counts(engines)) == 1


@pytest.mark.parametrize("paths", [[""], ["", "/x"]])
def test_all_backends_down_is_a_502_and_down_everywhere(unused_port: int, paths: list[str]) -> None:
    with proxy_for(*(f"http://127.0.0.1:{unused_port}{path}" for path in paths)) as proxy:
        answer = httpx.post(f"{proxy.url}/v1/chat/completions", json={"messages": []})
        ready = httpx.get(f"{proxy.url}/ready")
        backends = httpx.get(f"{proxy.url}/dashboard/data").json()["backends"]
        reason = "cannot connect to the backend: connection refused"
        assert (answer.status_code, answer.json()["error"]["message"]) == (502, reason)
        assert (ready.status_code, ready.json()["status"]) == (503, "no backend works")
        assert ready.json()["backends"] == {f"e{at}": reason for at in range(len(paths))}
        assert [backend["problem"] for backend in backends] == [reason] * len(paths)
        assert [gauge(proxy, "up", f"e{at}") for at in range(len(paths))] == [0] * len(paths)


def test_a_single_backend_that_dies_and_comes_back_is_seen_without_requests(
    unused_port: int,
) -> None:
    first = FakeEngine(port=unused_port)
    first.start()
    with proxy_for(first.url, router={"health_interval_s": 0.02}) as proxy:
        assert gauge(proxy, "up", "e0") == 1
        first.stop()
        eventually(lambda: gauge(proxy, "up", "e0"), equals=0)
        with FakeEngine(port=unused_port):
            eventually(lambda: gauge(proxy, "up", "e0"), equals=1)
            assert ask(proxy.url, 1).status_code == 200


def read_backend(proxy: ProxyServer) -> tuple[bool, bool]:
    """Return if the only backend works, according to the dashboard and to `/metrics`."""
    headers = {"authorization": "Bearer ours"}
    (shown,) = httpx.get(f"{proxy.url}/dashboard/data", headers=headers).json()["backends"]
    return shown["is_healthy"], bool(gauge(proxy, "up", shown["name"]))


@pytest.mark.parametrize(
    ("sections", "status"),
    [
        ({"backend": {"api_key": "wrong"}}, 503),
        ({"proxy": {"api_keys": ["ours"]}}, 503),  # no key of a client reaches the backend
        ({}, 200),  # the clients' keys are forwarded
    ],
)
def test_a_backend_that_refuses_the_proxys_credentials_is_down_wherever_one_looks(
    engines: list[FakeEngine], start_proxy: Callable[..., ProxyServer], sections: Any, status: int
) -> None:
    sections = {**sections, "backend": {"url": engines[0].url, **sections.get("backend", {})}}
    proxy = start_proxy(**sections, router={"health_interval_s": 0.02})
    engines[0].misbehave(status=401)
    works = status == 200
    eventually(lambda: read_backend(proxy), equals=(works, works))
    ready = httpx.get(f"{proxy.url}/ready")
    assert ready.status_code == status
    problems = list(ready.json().get("backends", {}).values())
    assert problems == ["credentials: GET /v1/models returned 401"] * (status == 503)
    engines[0].behave()
    eventually(lambda: read_backend(proxy), equals=(True, True))


def test_what_ready_sees_is_seen_on_the_page_and_in_the_metrics(
    engines: list[FakeEngine], start_proxy: Callable[..., ProxyServer]
) -> None:
    key = {"url": engines[0].url, "api_key": "wrong"}
    proxy = start_proxy(backend=key, router={"health_interval_s": 3600.0})
    assert httpx.get(f"{proxy.url}/ready").status_code == 200
    engines[0].misbehave(status=401)
    assert httpx.get(f"{proxy.url}/ready").status_code == 503
    assert read_backend(proxy) == (False, False)


async def test_a_flood_of_ready_is_one_check_at_a_time_and_one_failure() -> None:
    asked, released = asyncio.Event(), asyncio.Event()
    num_asked = 0

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal num_asked
        num_asked += 1
        asked.set()
        await released.wait()
        writer.write(b"HTTP/1.1 500 Oops\r\ncontent-length: 0\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    backends = Backends.of(Settings.model_validate({"backend": {"url": url}}))
    asking = [asyncio.create_task(backends.find_problems()) for _ in range(16)]
    await asked.wait()
    asking[0].cancel()  # the others still wait
    released.set()
    answers = await asyncio.gather(*asking[1:])
    assert (num_asked, backends.all[0].num_failures, answers) == (1, 1, [{}] * 15)
    await backends.close()
    server.close()


def test_a_backend_that_is_down_at_the_start_is_so_at_once(
    unused_port: int, start_proxy: Callable[..., ProxyServer]
) -> None:
    url = f"http://127.0.0.1:{unused_port}"
    proxy = start_proxy(backend={"url": url}, router={"health_interval_s": 3600.0})
    eventually(lambda: read_backend(proxy), equals=(False, False))


def test_a_backend_that_comes_back_gets_requests_again(
    engines: list[FakeEngine], unused_port: int
) -> None:
    url = f"http://127.0.0.1:{unused_port}"
    with proxy_for(url, engines[0].url, router={"health_interval_s": 0.05}) as proxy:
        ask(proxy.url, 1)
        assert gauge(proxy, "up", "e0") == 0
        with FakeEngine(port=unused_port):
            eventually(lambda: gauge(proxy, "up", "e0"), equals=1)
            homes = {ask(proxy.url, 7 + i).headers["x-ragboost-backend"] for i in range(4)}
            assert "e0" in homes


def test_a_sick_backend_is_left_out(engines: list[FakeEngine]) -> None:
    with proxy_for(engines[0].url, engines[1].url, router={"health_interval_s": 0.05}) as proxy:
        engines[0].misbehave(status=500)
        eventually(lambda: gauge(proxy, "up", "e0"), equals=0)
        homes = {ask(proxy.url, i).headers["x-ragboost-backend"] for i in range(4)}
        assert homes == {"e1"}


def test_a_backend_that_was_down_is_not_expected_to_hold_anything(
    engines: list[FakeEngine], unused_port: int
) -> None:
    first = FakeEngine(port=unused_port)
    first.start()
    with proxy_for(first.url, engines[0].url, router={"health_interval_s": 0.05}) as proxy:
        assert ask(proxy.url, 1, 2).headers["x-ragboost-backend"] == "e0"
        first.stop()
        for _ in range(2):
            assert ask(proxy.url, 1, 2).headers["x-ragboost-backend"] == "e1"
        with FakeEngine(port=unused_port):
            eventually(lambda: gauge(proxy, "up", "e0"), equals=1)
            answer = ask(proxy.url, 2, 1)
            assert answer.headers["x-ragboost-backend"] == "e1"
            assert int(answer.headers["x-ragboost-cached-tokens-predicted"]) > 0


def test_each_backend_gets_its_own_key(engines: list[FakeEngine]) -> None:
    extra = [{"api_key": "key-0"}, {"api_key": "key-1"}]
    with proxy_for(engines[0].url, engines[1].url, extra=extra) as proxy:
        for i in range(2):
            ask(proxy.url, i)
    seen = [engine.completions[-1].header("authorization") for engine in engines[:2]]
    assert seen == ["Bearer key-0", "Bearer key-1"]


def test_tenants_have_an_index_per_backend_and_do_not_meet(engines: list[FakeEngine]) -> None:
    with proxy_for(engines[0].url, engines[1].url) as proxy:
        ask(proxy.url, 1, 2, cache_salt="a")
        answer = ask(proxy.url, 2, 1, cache_salt="b")
        assert answer.headers["x-ragboost-cached-tokens-predicted"] == "0"
        prompt = json.dumps(
            engines[int(answer.headers["x-ragboost-backend"][1:])].completions[-1].json
        )
        assert prompt.index("Document 2 tells") < prompt.index("Document 1 tells")


def test_least_loaded_does_not_look_at_caches(engines: list[FakeEngine]) -> None:
    with proxy_for(engines[0].url, engines[1].url, router={"policy": "least_loaded"}) as proxy:
        homes = [ask(proxy.url, 1, 2).headers["x-ragboost-backend"] for _ in range(4)]
    assert homes == ["e0", "e1", "e0", "e1"]


def test_two_backends_of_one_name_are_refused() -> None:
    backends = [{"url": "http://a:1"}, {"url": "http://a:1/v1"}]
    with pytest.raises(ConfigError, match="two have the name 'a:1'"):
        create_app(Settings(backends=backends))  # type: ignore[arg-type]


async def test_a_client_that_leaves_while_its_backend_is_chosen_is_no_load() -> None:
    settings = Settings(backends=[{"url": "http://a"}, {"url": "http://b"}])  # type: ignore[arg-type]
    tenants = Tenants(settings)
    tenant = tenants.get(TenantKey("m", ""))
    dispatcher = Dispatcher(settings, backends=Backends.of(settings), tenants=tenants)
    front = Request("why?", (Document("a text"),))
    async with tenant.lock:
        request = RoutingRequest(tenant=tenant, find_leading=lambda: front, prompt_tokens=10)
        task = asyncio.create_task(dispatcher.enter(dispatcher.admission(request)))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    loads = [backend.load for backend in dispatcher.backends.all]
    assert [(load.assigned, load.prefill_tokens) for load in loads] == [(0, 0)] * 2


def one_token_per_byte(tenant: Tenant) -> None:
    """Let a tenant's tokenizer count a document."""
    tenant.tokens.is_counted = True
    tenant.tokens.count_documents([Document("x" * 2000)])
    for wanted in tenant.tokens.take_wanted(1):
        tenant.tokens.learn(wanted.key, len(wanted.text))


async def test_prompts_and_cached_documents_have_one_unit() -> None:
    settings = Settings(backends=[{"url": "http://a"}, {"url": "http://b"}])  # type: ignore[arg-type]
    tenants = Tenants(settings)
    dispatcher = Dispatcher(settings, backends=Backends.of(settings), tenants=tenants)
    messages = [{"role": "user", "content": "why?"}]
    body = {"model": "m", "messages": messages, "ragboost": {"documents": documents(1, 2)}}
    raw = json.dumps(body)
    request = parse_request(raw.encode(), (), formats=make_formats(settings))
    tenant = tenants.get(request.tenant_key)
    one_token_per_byte(tenant)
    found = [Document(each["text"], id=each["id"]) for each in documents(1, 2)]
    part, whole = dispatcher.backends.all
    tenant.booster(part.name).boost("why?", found[:1])
    tenant.booster(whole.name).boost("why?", found)
    with dispatcher.admission() as admission:
        find = partial(request.leading, None)
        await dispatcher.admit(admission, request, tenant=tenant, find_leading=find)
        assert admission.backend is whole
        assert admission.request.prompt_tokens == len(raw)
        assert 0.9 * len(raw) < admission.cached_tokens < len(raw)


async def test_what_was_sent_is_compared_in_the_unit_of_today() -> None:
    settings = Settings(backends=[{"url": "http://a"}, {"url": "http://b"}])  # type: ignore[arg-type]
    tenants = Tenants(settings)
    dispatcher = Dispatcher(settings, backends=Backends.of(settings), tenants=tenants)
    body = {"model": "m", "messages": [{"role": "user", "content": "x" * 2000}]}
    raw = json.dumps(body).encode()
    request = parse_request(raw, (), formats=make_formats(settings))
    tenant = tenants.get(request.tenant_key)
    with dispatcher.admission() as admission:
        await dispatcher.admit(admission, request)
        dispatcher.rewritten(admission, SentRequest(raw, ()))
        first = admission.backend
    one_token_per_byte(tenant)
    with dispatcher.admission() as admission:
        await dispatcher.admit(admission, request)
        assert admission.backend is first
        assert admission.cached_tokens == len(raw)


async def test_instructions_before_other_documents_count_as_long_as_they_are() -> None:
    settings = Settings(backends=[{"url": "http://a"}, {"url": "http://b"}])  # type: ignore[arg-type]
    tenants = Tenants(settings)
    dispatcher = Dispatcher(settings, backends=Backends.of(settings), tenants=tenants)
    instructions = {"role": "system", "content": "Be brief. " * 20}
    messages = [instructions, {"role": "user", "content": "why?"}]
    for number in (1, 2, 3):
        body = {"model": "m", "messages": messages, "ragboost": {"documents": documents(number)}}
        raw = json.dumps(body).encode()
        request = parse_request(raw, (), formats=make_formats(settings))
        tenant = tenants.get(request.tenant_key)
        one_token_per_byte(tenant)
        with dispatcher.admission() as admission:
            await dispatcher.admit(admission, request, tenant=tenant)
            dispatcher.rewritten(admission, SentRequest(raw, ()))
            assert admission.request.prompt_tokens == len(raw)
            assert max(admission.cached_by_backend) <= len(json.dumps(instructions))


def prefixes_in(raw: bytes) -> tuple[MessagePrefix, ...]:
    body = JsonBody(raw)
    return prefixes_of(chain_links(body.message_digests), body.messages)


def named(name: str) -> Any:
    return SimpleNamespace(name=name)


def send(
    prefixes: PrefixAffinity, name: str, sent: Sequence[MessagePrefix], *, num_bytes: int
) -> None:
    prefixes.note_sent(RoutingRequest(prefixes=sent), named(name), num_bytes=num_bytes)


async def held(prefixes: PrefixAffinity, backend: str, seen: Sequence[MessagePrefix]) -> int:
    """The bytes of messages that a backend was sent, at one token per byte."""
    request = RoutingRequest(prefixes=seen, tokens_per_byte=1.0)
    reading = await prefixes.read(request, ["a", "b"])
    return 0 if reading is None else int(reading.cached["ab".index(backend)])


async def test_prefixes_are_bounded_and_forgotten_with_their_backend() -> None:
    prefixes = PrefixAffinity(max_prefixes=1)  # of each of two backends
    seen = prefixes_in(b'{"messages":["%b","%b"]}' % (b"x" * 38, b"y" * 38))
    send(prefixes, "b", (), num_bytes=0)
    send(prefixes, "a", seen, num_bytes=500)
    assert prefixes.sent_bytes(seen, 80) == 500
    assert prefixes.sent_bytes(seen[:1], 40) == 40
    assert await held(prefixes, "a", seen) == 500
    assert await held(prefixes, "b", seen) == 0
    other = prefixes_in(b'{"messages":["%b"]}' % (b"z" * 38))
    send(prefixes, "a", other, num_bytes=7)
    assert await held(prefixes, "a", seen[:1]) == 0
    prefixes.forget(named("a"))
    assert prefixes.sent_bytes(seen, 80) == 80
    assert await held(prefixes, "a", seen) == 0


async def test_a_backend_that_is_forgotten_holds_only_what_it_is_sent_afterwards() -> None:
    prefixes = PrefixAffinity()
    seen = prefixes_in(b'{"messages":["%b","%b"]}' % (b"x" * 38, b"y" * 38))
    for backend in "ab":
        send(prefixes, backend, seen, num_bytes=80)
    prefixes.forget(named("a"))
    assert [await held(prefixes, backend, seen) for backend in "ab"] == [0, 80]
    send(prefixes, "a", seen[:1], num_bytes=40)
    assert [await held(prefixes, backend, seen) for backend in "ab"] == [40, 80]
