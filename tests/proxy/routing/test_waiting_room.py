"""The waiting room with `off`: bounded, in order of arrival, for backends with a limit alone."""

import asyncio
import threading
from typing import Any

import httpx
import pytest

from ragboost.booster.tenants import Tenants
from ragboost.config import Settings
from ragboost.errors import BackendRefusedError
from ragboost.proxy.routing.admission import Admission, RoutingRequest
from ragboost.proxy.routing.dispatcher import Dispatcher
from ragboost.proxy.routing.waiting_room import TooManyWaitingError
from ragboost.proxy.upstream.backends import Backends
from tests.eventually import eventually, run_event_loop
from tests.fakes import FakeEngine
from tests.fakes.proxy import ProxyServer, proxy_settings
from tests.metrics import read_metric
from tests.proxy.routing.test_routing import ask
from tests.sockets import open_request


class Room:
    """A waiting room before backends that run `max_concurrency` requests each."""

    def __init__(self, *, max_concurrency: int = 1, replicas: int = 1, **room: Any) -> None:
        urls = [
            {"url": f"http://e{i}", "max_concurrency": max_concurrency} for i in range(replicas)
        ]
        settings = Settings(backends=urls, waiting_room=room)  # type: ignore[arg-type]
        self.backends = Backends.of(settings)
        self.backend = self.backends.all[0]
        tenants = Tenants(settings)
        self.dispatcher = Dispatcher(settings, backends=self.backends, tenants=tenants)
        assert self.dispatcher.room is not None
        self.room = self.dispatcher.room

    def enter(self, conversation: str = "", priority: int = 0) -> "asyncio.Task[Admission]":
        request = RoutingRequest(prompt_tokens=100, conversation=conversation, priority=priority)
        admission = self.dispatcher.admission(request)
        return asyncio.create_task(self.dispatcher.enter(admission))

    def done(self, admission: Admission) -> None:
        admission.close()
        self.room.update()


async def test_an_idle_backend_is_given_work_at_once() -> None:
    made = Room()
    admission = await made.enter()
    assert admission.is_running
    made.done(admission)
    made.done(await made.enter())
    made.room.close()


async def test_no_more_run_than_the_backend_takes_and_they_keep_their_order() -> None:
    made = Room(max_concurrency=1)
    order: list[int] = []
    running: list[Admission] = []

    async def run(i: int) -> None:
        running.append(await made.enter("c" if i % 2 else ""))
        order.append(i)
        assert made.backend.load.running == 1

    tasks = [asyncio.create_task(run(i)) for i in range(7)]
    for _ in range(7):
        await run_event_loop()
        made.done(running.pop())
    await asyncio.gather(*tasks)
    assert order == list(range(7))
    assert made.backend.load.assigned == 0


async def test_nobody_waits_while_another_backend_has_room() -> None:
    made = Room(max_concurrency=1, replicas=2)
    running = [await made.enter() for _ in range(2)]
    waiting = [made.enter() for _ in range(3)]
    await run_event_loop()
    for _ in range(3):  # one backend is done with everything, the other is still at its first
        served = next(task for task in [running[0], *waiting] if is_at(task, made.backend))
        made.done(served.result() if isinstance(served, asyncio.Task) else served)
        await run_event_loop()
    assert all(task.done() for task in waiting)
    assert running[1].is_running


async def test_the_longest_wait_ends_first_wherever_it_is() -> None:
    made = Room(max_concurrency=1, replicas=3)
    running = [await made.enter() for _ in range(3)]
    gone, first, gone_too = (made.enter() for _ in range(3))
    await run_event_loop()
    gone.cancel()
    gone_too.cancel()
    await run_event_loop()
    second = made.enter()
    await run_event_loop()
    assert len(made.room) == 2  # `first` waits for the second backend, `second` for the first one
    idle = made.backends.all[2]
    made.done(next(admission for admission in running if admission.backend is idle))
    await run_event_loop()
    assert (is_at(first, idle), second.done()) == (True, False)
    made.room.close()
    await second


@pytest.mark.parametrize("mode", ["off", "adaptive"])
async def test_those_of_a_lesser_priority_leave_first_and_equal_ones_in_order(mode: str) -> None:
    made = Room(max_concurrency=1, mode=mode)
    running = await made.enter()
    priorities = {"a": 5, "b": 0, "c": 5, "d": -1, "e": 0, "f": -1}
    waiting = {name: made.enter(priority=each) for name, each in priorities.items()}
    await run_event_loop()
    left = ""
    while waiting:
        made.done(running)
        await run_event_loop()
        (name,) = [name for name, task in waiting.items() if task.done()]
        running = await waiting.pop(name)
        left += name
    assert left == "dfbeac"


async def test_a_backend_that_is_free_takes_the_least_priority_from_any_queue() -> None:
    made = Room(max_concurrency=1, replicas=3)
    running = [await made.enter() for _ in range(3)]
    later, urgent = made.enter(priority=5), made.enter(priority=-5)
    await run_event_loop()
    made.done(next(each for each in running if each.backend is made.backends.all[2]))
    await run_event_loop()
    assert (later.done(), urgent.done()) == (False, True)
    later.cancel()


async def test_a_backend_that_is_healthy_again_takes_those_who_wait() -> None:
    made = Room(max_concurrency=1, replicas=2)
    other = made.backends.all[1]
    made.backends.note_failure(other, BackendRefusedError("down"))
    await made.enter()
    waiting = [made.enter() for _ in range(2)]
    await run_event_loop()
    assert len(made.room) == 2
    made.backends._set_problem(other, None)
    later = made.enter()
    await run_event_loop()
    assert is_at(waiting[0], other)
    assert not later.done()
    made.room.close()
    await asyncio.gather(*waiting, later)


async def test_a_backend_that_is_down_is_sent_nobody_once_another_is_healthy() -> None:
    made = Room(max_concurrency=1, replicas=2)
    healthy, lost = made.backends.all
    running = {
        admission.backend: admission for admission in [await made.enter(), await made.enter()]
    }
    waiting = [made.enter() for _ in range(4)]
    await run_event_loop()
    for backend in (lost, healthy):
        made.backends._set_problem(backend, "down")
    made.backends._set_problem(healthy, None)
    made.done(running[lost])
    await run_event_loop()
    assert not any(task.done() for task in waiting)
    served = running[healthy]
    while waiting:
        made.done(served)
        await run_event_loop()
        (task,) = [task for task in waiting if task.done()]
        waiting.remove(task)
        served = task.result()
        assert served.backend is healthy
    assert lost.load.assigned == 0


def is_at(served: "Admission | asyncio.Task[Admission]", backend: Any) -> bool:
    if isinstance(served, asyncio.Task):
        return served.done() and is_at(served.result(), backend)
    return served.is_running and served.backend is backend


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
    made = Room(max_concurrency=1)
    first = await made.enter()
    arrived = made.enter()
    await run_event_loop()
    arrived.cancel()
    await run_event_loop()
    assert len(made.room) == 0
    made.done(first)
    # Behind another one.
    holder = await made.enter()
    several = [made.enter() for _ in range(3)]
    made.done(holder)
    await run_event_loop()
    for task in several:
        task.cancel()
    done = await asyncio.gather(*several, return_exceptions=True)
    for admission in done:
        if isinstance(admission, Admission):
            made.done(admission)
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
    assert refused.status_code == 429
    assert int(refused.headers["retry-after"]) >= 1  # as long as the longest wait so far
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
