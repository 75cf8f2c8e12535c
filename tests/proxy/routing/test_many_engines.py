"""Sixty-four clients of three tenants, and engines that die and return: nothing is mixed."""

import asyncio
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from threading import Thread
from typing import Any

import httpx
import pytest

from tests.eventually import eventually
from tests.fakes import FakeEngine
from tests.fakes.proxy import ProxyServer, proxy_settings
from tests.integrity import check_directory, check_index

CLIENTS = 64
REQUESTS = 6  # of a client
TENANTS = ("red", "green", "blue")
DOCUMENTS = 12  # of a tenant


@pytest.fixture
def engines() -> Iterator[list[FakeEngine]]:
    with ExitStack() as stack:
        yield [stack.enter_context(FakeEngine()) for _ in range(6)]


def proxy_for(engines: list[FakeEngine], **sections: Any) -> ProxyServer:
    replicas: Any = [{"url": engine.url, "name": f"e{i}"} for i, engine in enumerate(engines)]
    router: Any = {"health_interval_s": 0.1}
    return ProxyServer(
        proxy_settings("http://unused", backends=replicas, router=router, **sections)
    )


def body_of(client: int, number: int) -> dict[str, Any]:
    """A request of a client's tenant, with a question that no other request asks."""
    tenant = TENANTS[client % len(TENANTS)]
    chosen = random.Random(f"{client} {number}").sample(range(DOCUMENTS), 5)
    texts = [{"id": f"{tenant}-{i}", "text": f"<{tenant} {i}> " * 30} for i in chosen]
    return {
        "model": "m",
        "cache_salt": tenant,
        "messages": [{"role": "user", "content": f"question-{client}-{number}?"}],
        "ragboost": {"documents": texts},
    }


async def ask_all(url: str) -> list[tuple[dict[str, Any], httpx.Response]]:
    async with httpx.AsyncClient(timeout=None) as http:

        async def client(number: int) -> list[tuple[dict[str, Any], httpx.Response]]:
            bodies = [body_of(number, at) for at in range(REQUESTS)]
            return [(b, await http.post(f"{url}/v1/chat/completions", json=b)) for b in bodies]

        answers = await asyncio.gather(*map(client, range(CLIENTS)))
    return [answer for each in answers for answer in each]


def has_received(engines: list[FakeEngine], num_requests: int) -> bool:
    return sum(len(engine.completions) for engine in engines) >= num_requests


def check_prompts(
    answers: list[tuple[dict[str, Any], httpx.Response]], engines: list[FakeEngine]
) -> None:
    """Each request's prompt has its own documents, once each, and no others."""
    wanted = {
        body["messages"][0]["content"]: Counter(d["text"] for d in body["ragboost"]["documents"])
        for body, _ in answers
    }
    seen = set()
    for engine in engines:
        for received in engine.completions:
            text = received.json["messages"][-1]["content"]
            (question,) = [q for q in wanted if q in text]
            seen.add(question)
            for document, count in wanted[question].items():
                assert text.count(document.strip()) == count, text
            assert text.count("<") >= 5 * 30
            tenant = received.json["cache_salt"]
            assert not [other for other in TENANTS if other != tenant and f"<{other} " in text]
            numbers = {int(part.split(">")[0]) for part in text.split(f"<{tenant} ")[1:]}
            assert len(numbers) == 5
    # A request whose engine died may have reached none.
    answered = {body["messages"][0]["content"] for body, answer in answers if answer.is_success}
    assert answered <= seen


def check_directories(proxy: ProxyServer) -> None:
    """Each tenant's directory lists its indexes' documents, and no other tenant's."""
    tenants = proxy.app.state.cache_sync.followers["e0"]._tenants
    assert {tenant.key.cache_salt for tenant in tenants.all()} == set(TENANTS)
    for tenant in tenants.all():
        tenant._leave_directory()
        assert tenant._directory is not None
        check_directory(tenant._directory)
        for booster in tenant.boosters.values():
            check_index(booster.index)
        recent = tenant._directory._recent
        assert len(recent.newer) + len(recent.older) <= 2 * DOCUMENTS


def test_every_request_is_answered_with_its_own_documents(engines: list[FakeEngine]) -> None:
    with proxy_for(engines) as proxy:
        answers = asyncio.run(ask_all(proxy.url))
        assert {answer.status_code for _, answer in answers} == {200}
        assert sum(len(engine.completions) for engine in engines) == CLIENTS * REQUESTS
        check_prompts(answers, engines)
        check_directories(proxy)


def test_every_request_is_answered_while_engines_die_and_return(engines: list[FakeEngine]) -> None:
    lives = list(engines)  # all that ever ran
    with proxy_for(engines) as proxy, ExitStack() as stack:
        answers: list[tuple[dict[str, Any], httpx.Response]] = []
        asking = Thread(target=lambda: answers.extend(asyncio.run(ask_all(proxy.url))))
        asking.start()
        for at in range(3):
            eventually(partial(has_received, lives, 60 * (at + 1)))
            port = httpx.URL(lives[at].url).port
            assert port is not None
            lives[at].stop()
            lives.append(stack.enter_context(FakeEngine(port=port)))
        asking.join()
        statuses = Counter(answer.status_code for _, answer in answers)
        # A request whose engine died under it may have been computed, and is not sent again.
        assert set(statuses) <= {200, 502}
        assert statuses[200] + statuses[502] == CLIENTS * REQUESTS
        assert statuses[502] <= 3 * CLIENTS
        received = Counter(
            r.json["messages"][-1]["content"].split("question-")[1].split("?")[0]
            for engine in lives
            for r in engine.completions
        )
        assert max(received.values()) == 1
        check_prompts(answers, lives)
        check_directories(proxy)


def test_what_one_tenant_was_sent_moves_no_document_and_no_request_of_another(
    engines: list[FakeEngine],
) -> None:
    def ask(body: dict[str, Any]) -> httpx.Headers:
        answer = httpx.post(f"{proxy.url}/v1/chat/completions", json=body)
        assert answer.status_code == 200, answer.text
        return answer.headers

    ordering = {"tail": "popularity"}
    with proxy_for(engines[:2], ordering=ordering, tokens={"ask_backend": False}) as proxy:
        for number in range(12):
            texts = [{"text": f"<text {number} {i}> " * 30} for i in range(5)]
            body = {**body_of(0, number), "ragboost": {"documents": texts}}
            homes = {ask(body)["x-ragboost-backend"] for _ in range(3)}
            (home,) = homes
            theirs = {**body_of(1, number), "ragboost": {"documents": texts[::-1]}}
            answer = ask(theirs)
            # The backend with fewer requests so far, nothing cached, the order that was given.
            assert answer["x-ragboost-backend"] != home
            assert answer["x-ragboost-cached-tokens-predicted"] == "0"
            sent = engines[1 - int(home[1:])].completions[-1].json["messages"][-1]["content"]
            places = [sent.index(f"<text {number} {i}>") for i in range(5)]
            assert places == sorted(places, reverse=True)
