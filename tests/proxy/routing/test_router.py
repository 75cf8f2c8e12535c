"""The choice of a backend: one search for all, and documents that share no prefix yet."""

import asyncio
from collections import Counter
from collections.abc import Sequence

import pytest

from ragboost.booster.tenants import Tenant, TenantKey, Tenants
from ragboost.config import Settings
from ragboost.proxy.routing.admission import Admission, RoutingRequest
from ragboost.proxy.routing.dispatcher import Dispatcher
from ragboost.proxy.upstream.backend import Backend
from ragboost.proxy.upstream.backends import Backends
from ragboost.types import Document, Request
from tests.eventually import run_event_loop

TOKENS = 400  # of a document


@pytest.fixture(autouse=True)
def light_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Running requests hardly count."""
    monkeypatch.setattr("ragboost.proxy.routing.router._MAX_RUNNING_TOKENS", 10)


class Routed:
    """Requests that are routed and boosted, and never sent."""

    def __init__(self, *, backends: int = 3, **sections: object) -> None:
        urls = [{"url": f"http://e{number}"} for number in range(backends)]
        settings = Settings.model_validate({"backends": urls, **sections})
        tenants = Tenants(settings)
        self.backends = Backends.of(settings)
        self.dispatcher = Dispatcher(settings, backends=self.backends, tenants=tenants)
        self.tenant: Tenant = tenants.get(TenantKey("m", ""))

    async def place(self, *names: str) -> Admission:
        """Route a request; it stays in its backend's queue until it is closed."""
        request = RoutingRequest(
            tenant=self.tenant,
            find_leading=lambda: Request("?", documents(*names)),
            prompt_tokens=TOKENS * len(names),
        )
        return await self.dispatcher.enter(self.dispatcher.admission(request))

    async def send(self, *names: str) -> Backend:
        """Route, boost and end a request."""
        with await self.place(*names) as admission:
            self.tenant.booster(admission.backend.name).boost("?", documents(*names))
            return admission.backend


def documents(*names: str) -> tuple[Document, ...]:
    return tuple(Document(f"{name} ".ljust(4 * TOKENS, "x"), id=name) for name in names)


async def homes(routed: Routed, requests: Sequence[str]) -> list[Backend]:
    return [await routed.send(*names) for names in requests]


async def test_documents_go_where_they_were_sent_although_no_prefix_is_common() -> None:
    routed = Routed()
    first, second = await homes(routed, ["abcdef", "uvwxyz"])
    assert first is not second
    assert await homes(routed, ["bcdefg", "zyxwvt", "gfedcb"]) == [first, second, first]


async def test_a_hot_document_gets_a_second_backend_when_its_own_is_busy() -> None:
    routed = Routed()
    home = await routed.send(*"abcdef")
    waiting = [await routed.place(*"abcde", f"once {number}") for number in range(30)]
    placed = [admission.backend for admission in waiting]
    assert placed[0] is home
    assert {backend.name for backend in placed} == {b.name for b in routed.backends.all}
    for admission in waiting:
        admission.close()


async def test_requests_that_waited_for_an_index_spread_as_those_that_did_not() -> None:
    spread = []
    for is_in_use in (False, True):
        routed = Routed(backends=4)
        await routed.send(*"abcdef")
        if is_in_use:  # by a thread that boosts a large request
            await routed.tenant.lock.acquire()
        placing = [
            asyncio.create_task(routed.place(*"abcde", f"once {number}")) for number in range(40)
        ]
        await run_event_loop()
        if is_in_use:
            routed.tenant.lock.release()
        placed = await asyncio.gather(*placing)
        spread.append(Counter(admission.backend.name for admission in placed))
    assert spread[0] == spread[1]
    assert len(spread[1]) == 4


async def test_the_lead_of_a_busy_backend_is_bounded_by_what_its_cache_saves_the_request() -> None:
    routed = Routed()
    home = await routed.send(*"abcdef")
    home.add_load(prefill_tokens=3 * TOKENS)
    assert await routed.send(*"abcdxy") is home
    assert await routed.send(*"bcdefg") is not home, "its cache has no prefix of these"


async def test_a_running_request_weighs_little_beside_a_short_prompt() -> None:
    routed = Routed(router={})
    home = await routed.send("a")
    for _ in range(5):
        running = await routed.place("a")
        running.count_computed()
        assert running.backend is home

    with await routed.place("a") as admission:
        assert admission.backend is home, "400 tokens cost more than five requests of 20"


async def test_a_backend_that_returns_gets_no_more_than_it_needs_to_catch_up() -> None:
    routed = Routed(backends=4)
    away = routed.backends.all[0]

    def assign() -> Backend:
        with routed.dispatcher.admission() as admission:
            routed.dispatcher.assign(admission)
            return admission.backend

    routed.backends._set_problem(away, "down")
    assert len({assign() for _ in range(1_000)}) == 3
    routed.backends._set_problem(away, None)
    shares = Counter(assign() for _ in range(400))
    assert len(shares) == 4
    assert 100 <= shares[away] <= 200, "it was away for 333 of each other's"


async def test_only_the_backend_that_is_chosen_has_an_index() -> None:
    routed = Routed(backends=64)
    backend = await routed.send(*"abc")
    with await routed.place(*"abd") as admission:
        assert admission.backend is backend
        assert admission.cached_tokens == 2 * TOKENS
    assert list(routed.tenant.boosters) == [backend.name]


async def test_every_cache_is_known_when_the_backend_is_chosen() -> None:
    routed = Routed(backends=9)
    for number, backend in enumerate(routed.backends.all):
        routed.tenant.booster(backend.name).boost("?", documents(*"abcdefghi"[: number + 1]))
    with await routed.place(*"ihgfedcba") as admission:
        assert [admission.cached_in(backend) for backend in routed.backends.all] == [
            TOKENS * count for count in range(1, 10)
        ]
        assert admission.backend is routed.backends.all[-1]


@pytest.mark.parametrize("is_enabled", [True, False])
async def test_documents_that_are_not_ordered_are_found_in_their_order_only(
    is_enabled: bool,
) -> None:
    routed = Routed(ordering={"enabled": is_enabled})
    backend = routed.backends.all[1]
    routed.tenant.booster(backend.name).boost("?", documents(*"abc"))
    with await routed.place(*"acb") as admission:
        assert admission.backend is backend
        assert admission.cached_tokens == TOKENS * (3 if is_enabled else 1)


async def test_a_backend_that_went_down_holds_nothing_and_may_hold_again() -> None:
    routed = Routed()
    home = await routed.send(*"abc")
    async with routed.tenant.lock:  # its index may be in use
        routed.tenant.forget(home.name)
    with await routed.place(*"abc") as admission:
        assert admission.cached_in(home) == 0
    routed.tenant.booster(home.name).boost("?", documents(*"ab"))
    with await routed.place(*"abc") as admission:
        assert (admission.backend, admission.cached_in(home)) == (home, 2 * TOKENS)


async def test_prefixes_that_have_expired_attract_nobody() -> None:
    routed = Routed(index={"ttl_s": 1e-6})
    home = await routed.send(*"abc")
    with await routed.place(*"cba") as admission:
        assert admission.cached_in(home) == 0


async def test_all_backends_of_a_tenant_learn_one_order() -> None:
    routed = Routed(ordering={"tail": "popularity"})
    first, second, _ = routed.backends.all
    for number in range(30):
        names = ("hot", f"once {number}", "warm")
        routed.tenant.booster(first.name).boost("?", documents(*names))
    context = routed.tenant.booster(second.name).boost("?", documents("new", "warm", "hot"))
    assert {document.id for document in context.documents[:2]} == {"hot", "warm"}


async def test_loads_that_change_are_read_again() -> None:
    routed = Routed()
    for backend in routed.backends.all[:2]:
        backend.add_load(prefill_tokens=10_000)
    assert (await routed.send(*"abc")) is routed.backends.all[2]
    routed.backends.all[0].add_load(prefill_tokens=-10_000)
    routed.backends.all[2].add_load(prefill_tokens=10_000)
    assert (await routed.send(*"xyz")) is routed.backends.all[0]
