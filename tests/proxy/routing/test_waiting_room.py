"""The waiting room: bounded, fair, never in the way of an idle backend."""

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import httpx
import pytest

from ragboost.booster.planning import Planned
from ragboost.config import Settings
from ragboost.proxy.routing.assignment import Assignment, RoutingRequest
from ragboost.proxy.routing.waiting_room import TooManyWaitingError, WaitingRoom
from ragboost.proxy.upstream.backends import Backends
from tests.eventually import eventually, run_event_loop
from tests.fakes import FakeEngine
from tests.fakes.clock import LoopClock
from tests.fakes.proxy import ProxyServer, proxy_settings
from tests.metrics import read_metric
from tests.proxy.routing.test_routing import ask
from tests.sockets import open_request

LONG_MS = 3_600_000.0


class Room:
    """A waiting room before one backend; batches are released backwards."""

    def __init__(self, *, max_concurrency: int | None = None, **waiting_room: Any) -> None:
        settings = Settings(
            backend={"max_concurrency": max_concurrency},  # type: ignore[arg-type]
            waiting_room={"mode": "window", **waiting_room},  # type: ignore[arg-type]
        )
        self.backends = Backends.of(settings)
        self.backend = self.backends.all[0]
        self.batches: list[int] = []
        self.plans: dict[RoutingRequest, Planned] = {}
        self.error: Exception | None = None
        self.room = WaitingRoom(self._assign, self.backends, settings.waiting_room)

    async def _assign(self, jobs: Sequence[RoutingRequest]) -> Sequence[Assignment]:
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        self.batches.append(len(jobs))
        tickets = [Assignment(job, self.backend) for job in reversed(jobs)]
        for ticket in tickets:
            ticket.planned = self.plans.get(ticket.request)
        return tickets

    def enter(self, job: RoutingRequest | None = None) -> "asyncio.Task[Assignment]":
        return asyncio.create_task(self.room.enter(job or RoutingRequest(prompt_tokens=100)))

    def done(self, ticket: Assignment) -> None:
        ticket.close()
        self.room.update()


async def test_an_idle_backend_is_given_work_at_once() -> None:
    made = Room(window_ms=LONG_MS)
    ticket = await made.enter()
    assert ticket.is_running
    made.done(ticket)
    made.done(await made.enter())
    assert made.batches == [1, 1]
    made.room.close()


async def test_a_busy_backend_lets_requests_wait_for_the_window_and_plans_them_together() -> None:
    clock = LoopClock()
    made = Room(window_ms=30)
    first = await made.enter()
    late = [made.enter() for _ in range(3)]
    await clock.advance(0.029)
    assert not any(task.done() for task in late)
    await clock.advance(0.002)
    tickets = await asyncio.gather(*late)
    assert made.batches == [1, 3]
    assert [ticket.is_running for ticket in (first, *tickets)] == [True] * 4
    assert made.backend.load.running == 4


async def test_a_full_batch_does_not_wait() -> None:
    made = Room(window_ms=LONG_MS, max_batch=4)
    await made.enter()
    await asyncio.gather(*(made.enter() for _ in range(4)))
    assert made.batches == [1, 4]
    made.room.close()


async def test_a_backend_that_becomes_idle_ends_the_window() -> None:
    made = Room(window_ms=LONG_MS)
    first = await made.enter()
    second = made.enter()
    await run_event_loop()
    made.done(first)
    await second
    made.room.close()


async def test_no_more_run_than_the_backend_takes_and_batches_keep_their_order() -> None:
    made = Room(window_ms=0, max_batch=2, max_concurrency=1)
    order: list[int] = []
    running: list[Assignment] = []

    async def run(i: int) -> None:
        ticket = await made.room.enter(RoutingRequest())
        order.append(i)
        running.append(ticket)
        assert made.backend.load.running == 1

    tasks = [asyncio.create_task(run(i)) for i in range(7)]
    for _ in range(7):
        await run_event_loop()
        made.done(running.pop())
    await asyncio.gather(*tasks)
    # Backwards within a batch, batches in order of arrival: nobody is overtaken by more than one.
    assert all(abs(at - i) <= 1 for at, i in enumerate(order))
    assert made.backend.load.assigned == 0


async def test_a_full_queue_is_refused_with_a_time_to_wait() -> None:
    made = Room(max_concurrency=1, max_waiting=2)
    await made.enter()
    waiting = [made.enter() for _ in range(2)]
    await run_event_loop()
    with pytest.raises(TooManyWaitingError) as refused:
        await made.enter()
    assert (refused.value.status, refused.value.retry_after_s) == (429, 1)
    assert len(made.room) == 2
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


async def test_a_cancelled_client_leaves_the_queue_wherever_it_stands() -> None:
    made = Room(window_ms=0, max_concurrency=1)
    first = await made.enter()
    arrived = made.enter()
    await run_event_loop()
    arrived.cancel()
    await run_event_loop()
    assert len(made.room) == 0
    made.done(first)
    # Planned, and ready behind another one.
    holder = await made.enter()
    batch = [made.enter() for _ in range(3)]
    made.done(holder)
    await run_event_loop()
    for task in batch:
        task.cancel()
    done = await asyncio.gather(*batch, return_exceptions=True)
    for ticket in done:
        if isinstance(ticket, Assignment):
            made.done(ticket)
    assert (made.backend.load.assigned, made.backend.load.running) == (0, 0)
    made.done(await made.enter())


async def test_a_client_that_leaves_just_when_it_is_released_frees_its_place() -> None:
    made = Room(max_concurrency=1)
    first = await made.enter()
    second = made.enter()
    await run_event_loop()
    first.close()
    made.room.update()
    await asyncio.sleep(0)
    second.cancel()
    await asyncio.gather(second, return_exceptions=True)
    await run_event_loop()
    assert made.backend.load.running == (1 if not second.cancelled() else 0)


async def test_a_bug_while_planning_reaches_everybody_who_waits() -> None:
    made = Room()
    made.error = ZeroDivisionError("a bug")
    with pytest.raises(ZeroDivisionError):
        await made.enter()
    made.error = None
    await made.enter()


def plan(*elements: str, cached_tokens: int = 0) -> Planned:
    order = tuple(range(len(elements)))
    return Planned(order, elements, (100,) * len(elements), cached_tokens)


async def test_a_request_waits_for_the_first_token_of_one_that_computes_its_prefix() -> None:
    made = Room(window_ms=0, hold_for_prefill_ms=LONG_MS)
    one, two, other = RoutingRequest(), RoutingRequest(), RoutingRequest()
    made.plans = {one: plan("a", "b"), two: plan("a", "c"), other: plan("x", "a")}
    first = await made.enter(one)
    second, third = made.enter(two), made.enter(other)
    assert (await third).is_running
    assert not second.done()
    first.prefill_done()
    made.room.update()
    assert (await second).is_running
    made.room.close()


async def test_the_wait_for_a_prefill_is_bounded() -> None:
    clock = LoopClock()
    made = Room(window_ms=0, hold_for_prefill_ms=20)
    one, two = RoutingRequest(), RoutingRequest()
    made.plans = {one: plan("a", "b"), two: plan("a", "c")}
    await made.enter(one)
    second = made.enter(two)
    await clock.advance(0.019)
    assert not second.done()
    await clock.advance(0.002)
    assert (await second).is_running


async def test_nobody_waits_for_a_prefix_that_was_cached_before() -> None:
    made = Room(window_ms=0, hold_for_prefill_ms=LONG_MS)
    one, two = RoutingRequest(), RoutingRequest()
    made.plans = {one: plan("a", "b", cached_tokens=100), two: plan("a", "c", cached_tokens=100)}
    await made.enter(one)
    assert (await made.enter(two)).is_running
    made.room.close()


def test_a_burst_is_answered_and_its_prefixes_are_shared(engine: FakeEngine) -> None:
    settings = proxy_settings(
        engine.url, waiting_room={"mode": "window", "window_ms": LONG_MS, "max_batch": 6}
    )
    with ProxyServer(settings) as proxy:
        engine.misbehave(hold=True)
        keep_busy = threading.Thread(target=ask, args=(proxy.url, 900))
        keep_busy.start()
        eventually(lambda: engine.num_active, equals=1)
        engine.behave()
        burst = [threading.Thread(target=ask, args=(proxy.url, 10 + i, 1, 2, 3)) for i in range(6)]
        for thread in burst:
            thread.start()
        for thread in burst:
            thread.join()
        engine.release()
        keep_busy.join()
    cached = [r.cached_tokens / r.prompt_tokens for r in engine.completions[1:]]
    assert len(cached) == 6
    assert sum(share > 0.4 for share in cached) == 5


def test_a_full_waiting_room_is_a_429_that_says_when_to_come_back(engine: FakeEngine) -> None:
    settings = proxy_settings(
        engine.url, backend={"max_concurrency": 1}, waiting_room={"max_waiting": 1}
    )
    with ProxyServer(settings) as proxy:
        engine.misbehave(hold=True)
        threads = [threading.Thread(target=ask, args=(proxy.url, i)) for i in range(2)]
        threads[0].start()
        eventually(lambda: engine.num_active, equals=1)
        threads[1].start()
        eventually(lambda: read_metric(proxy.url, "ragboost_queue_depth"), equals=1)
        refused = httpx.post(f"{proxy.url}/v1/chat/completions", json={"messages": []})
        engine.release()
        for thread in threads:
            thread.join()
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
    assert refused.json()["error"]["type"] == "rate_limit_error"
    assert engine.peak_active == 1
    assert len(engine.completions) == 2


def test_a_client_that_leaves_the_queue_is_never_sent(engine: FakeEngine) -> None:
    with ProxyServer(proxy_settings(engine.url, backend={"max_concurrency": 1})) as proxy:
        engine.misbehave(hold=True)
        busy = threading.Thread(target=ask, args=(proxy.url, 1))
        busy.start()
        eventually(lambda: engine.num_active, equals=1)
        with open_request(proxy.port, "/v1/chat/completions", {"messages": []}):
            eventually(lambda: read_metric(proxy.url, "ragboost_queue_depth"), equals=1)
        eventually(lambda: read_metric(proxy.url, "ragboost_queue_depth"), equals=0)
        engine.release()
        busy.join()
        ask(proxy.url, 2)
    assert len(engine.completions) == 2
