"""The adaptive waiting room: nobody is held for nothing, for too long, or for ever."""

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragboost.booster.tenants import TenantKey, Tenants
from ragboost.config import Settings
from ragboost.ordering import Order
from ragboost.proxy.routing.admission import Admission, RoutingRequest
from ragboost.proxy.routing.dispatcher import Dispatcher
from ragboost.proxy.routing.waiting_room import TooManyWaitingError
from ragboost.proxy.upstream.backends import Backends
from ragboost.types import Document, Request
from tests.eventually import run_event_loop
from tests.fakes import FakeEngine
from tests.fakes.clock import LoopClock
from tests.fakes.proxy import ProxyServer, proxy_settings
from tests.fakes.virtual_time import VirtualEngine, virtual_loop
from tests.metrics import read_metric
from tests.proxy.routing.test_routing import ask

TOKENS = 10_000  # of every prompt; three documents have about as many
MAX_WAIT_S = 30.0


class Room:
    """A dispatcher with an adaptive room, before backends that the test plays."""

    def __init__(self, *, replicas: int = 1, limit: int | None = None, **room: Any) -> None:
        urls = [{"url": f"http://e{i}", "max_concurrency": limit} for i in range(replicas)]
        settings = Settings(
            backends=urls,  # type: ignore[arg-type]
            waiting_room={"mode": "adaptive", **room},  # type: ignore[arg-type]
        )
        tenants = Tenants(settings)
        self.tenant = tenants.get(TenantKey("m", ""))
        self.backends = Backends.of(settings)
        self.dispatcher = Dispatcher(settings, backends=self.backends, tenants=tenants)
        assert self.dispatcher.room is not None
        self.room = self.dispatcher.room

    def admission(self, *documents: int, **facts: Any) -> Admission:
        texts = tuple(Document(f"Document {i}. " * 1100, id=str(i)) for i in documents)
        facts = {"is_stream": True, "prompt_tokens": TOKENS, "tenant": self.tenant, **facts}
        if texts:
            facts["find_leading"] = lambda: Request("why?", texts)
        return self.dispatcher.admission(RoutingRequest(**facts))

    def enter(self, *documents: int, **facts: Any) -> "asyncio.Task[Admission]":
        return asyncio.create_task(self.dispatcher.enter(self.admission(*documents, **facts)))

    def boost(self, assignment: Admission) -> None:
        """Do what the proxy does when the room has released a request."""
        request = assignment.request.leading
        assert request is not None
        booster = self.tenant.booster(assignment.backend.name)
        booster.boost(request.query, request.documents, planned=assignment.planned)

    def begun(self, assignment: Admission, *, is_stream: bool = True) -> None:
        self.dispatcher.begun(assignment, is_stream=is_stream)

    def done(self, assignment: Admission) -> None:
        self.begun(assignment)
        assignment.close()
        self.dispatcher.update()

    async def learn(self, clock: LoopClock) -> None:
        """Show that the backends compute one prompt after another, in a second each."""
        for _ in range(3 * len(self.backends.all)):
            alone = await self.enter()
            await clock.advance(1.0)
            self.done(alone)
        for _ in range(3):
            several = [await self.enter() for _ in range(2 * len(self.backends.all))]
            for one in several[: len(self.backends.all)]:
                await clock.advance(1.0 / len(self.backends.all))
                self.done(one)
            for one in several[len(self.backends.all) :]:
                await clock.advance(1.0 / len(self.backends.all))
                self.done(one)


async def test_nobody_is_held_while_the_pace_is_unknown() -> None:
    made = Room()
    sent = [await made.enter(i) for i in range(50)]
    assert {assignment.release for assignment in sent} == {"at_once"}
    assert made.backends.all[0].load.running == 50


async def test_a_backend_that_computes_side_by_side_is_never_busy() -> None:
    clock, made = LoopClock(), Room()
    for _ in range(5):
        sent = [await made.enter(i) for i in range(20)]
        await clock.advance(1.0)
        for assignment in sent:
            assert assignment.release == "at_once"
            made.done(assignment)
    assert made.room.paces[made.backends.all[0]].limit_tokens == float("inf")


async def test_a_busy_backend_keeps_two_prompts_and_the_others_wait() -> None:
    clock, made = LoopClock(), Room()
    await made.learn(clock)
    tasks = [made.enter(i) for i in range(5)]
    await run_event_loop()
    assert [task.done() for task in tasks] == [True, True, False, False, False]
    await clock.advance(1.0)
    made.done(tasks[0].result())
    await run_event_loop()
    assert sum(task.done() for task in tasks) == 3
    for task in tasks[1:]:
        await run_event_loop()
        made.done(await task)
    assert len(made.room) == 0


async def release_order(
    *contexts: tuple[int, ...], together: int = 0
) -> tuple[list[int], list[Admission]]:
    """Return in which order requests that arrive at a busy backend are sent, and these requests.

    So many at the front have their first bytes at the same time: computed side by side.
    """
    clock, made = LoopClock(), Room()
    await made.learn(clock)
    busy = [await made.enter() for _ in range(2)]
    tasks = [made.enter(*context) for context in contexts]
    await run_event_loop()
    order: list[int] = []
    running = list(busy)
    while running:
        await clock.advance(1.0)
        made.done(running.pop(0))
        while running and running[0] in [
            task.result() for task in tasks[1:together] if task.done()
        ]:
            made.done(running.pop(0))
        await run_event_loop()
        for i, task in enumerate(tasks):
            if task.done() and i not in order:
                order.append(i)
                running.append(task.result())
                made.boost(task.result())
    return order, [task.result() for task in tasks]


SHARING = (
    *((3, 1, 2), (4, 2, 1), (7, 8, 9), (10, 11, 12), (13, 14, 15), (16, 17, 18)),
    *((19, 20, 21), (5, 1, 2)),
)


async def test_what_sharing_has_saved_is_spent_on_sending_others_that_share() -> None:
    order, sent = await release_order(*SHARING)

    assert sorted(order) == [0, 1, 2, 3, 4, 5, 6, 7]
    assert order.index(7) < order.index(5)
    assert sent[7].release == "planned"


async def test_a_prefix_that_is_computed_side_by_side_has_saved_nothing() -> None:
    order, sent = await release_order(*SHARING, together=2)

    assert sent[1].cached_tokens > 0, "it was sent while its prefix was computed"
    assert order == [0, 1, 2, 3, 4, 5, 6, 7]


async def test_what_the_order_of_arrival_would_save_as_well_is_not_spent() -> None:
    order, _ = await release_order((1, 2, 3), (2, 1, 4), (7, 8, 9), (9, 10, 11), (5, 1, 2))

    assert order == [0, 1, 2, 3, 4]


async def test_nobody_waits_longer_than_the_bound() -> None:
    clock, made = LoopClock(), Room()
    await made.learn(clock)
    tasks = [made.enter(i) for i in range(6)]
    await clock.advance(MAX_WAIT_S - 0.1)
    assert not all(task.done() for task in tasks)
    await clock.advance(0.2)
    assert all(task.done() for task in tasks)
    assert [task.result().release for task in tasks[2:]] == ["max_wait"] * 4


async def test_a_response_without_a_stream_counts_as_computed_after_its_time() -> None:
    clock, made = LoopClock(), Room()
    await made.learn(clock)
    tasks = [made.enter(is_stream=False) for _ in range(4)]
    await run_event_loop()
    assert [task.done() for task in tasks] == [True, True, False, False]
    await clock.advance(1.1)
    await clock.advance(1.1)
    await clock.advance(1.1)
    assert all(task.done() for task in tasks)


async def test_a_full_room_sends_the_most_urgent_request_instead() -> None:
    clock, made = LoopClock(), Room(max_waiting=2)
    await made.learn(clock)
    tasks = [made.enter(i) for i in range(5)]
    await run_event_loop()
    assert len(made.room) == 2
    assert [task.done() for task in tasks] == [True, True, True, False, False]
    assert tasks[2].result().release == "full"


async def test_a_full_room_refuses_only_what_the_backend_may_not_be_sent() -> None:
    made = Room(max_waiting=1, limit=1)
    first = await made.enter()
    second = made.enter()
    await run_event_loop()
    with pytest.raises(TooManyWaitingError):
        await made.enter()
    made.done(first)
    assert (await second).is_running


async def test_a_plan_is_for_one_backend() -> None:
    made = Room(replicas=2)
    assignment = await made.enter(1, 2)
    assignment.planned = Order((1, 0), ("2", "1"), (10, 10), 20)
    assignment.move(next(b for b in made.backends.all if b is not assignment.backend))
    assert assignment.planned is None


async def test_nobody_waits_at_a_full_backend_while_another_has_room() -> None:
    """However much of the prompt the full one has cached: nobody knows when it will have room."""
    made = Room(replicas=2, limit=1)
    first = await made.enter(1, 2, 3)
    made.boost(first)
    made.begun(first)  # its prompt is computed, and it runs on
    second = made.enter(1, 2, 3)
    await run_event_loop()
    assert second.done()
    assert second.result().backend is not first.backend
    assert second.result().cached_in(first.backend) > 0


async def test_requests_wait_for_another_backend_when_theirs_is_down() -> None:
    clock, made = LoopClock(), Room(replicas=2)
    await made.learn(clock)
    tasks = [made.enter(i) for i in range(8)]
    await run_event_loop()
    lost = made.backends.all[0]
    waiting = [task for task in tasks if not task.done()]
    assert waiting
    lost.problem = "lost"
    for call in made.backends.on_down:
        call(lost)
    running = [task.result() for task in tasks if task.done()]
    while running:
        await clock.advance(1.0)
        made.done(running.pop(0))
        await run_event_loop()
        running += [task.result() for task in waiting if task.done()]
        waiting = [task for task in waiting if not task.done()]
    assert not waiting
    assert lost.load.assigned == 0


async def test_clients_that_leave_give_nobody_a_lead() -> None:
    clock, made = LoopClock(), Room()
    await made.learn(clock)
    busy = [await made.enter() for _ in range(2)]
    tasks = [made.enter() for _ in range(8)]
    await run_event_loop()
    for task in tasks[:6]:
        task.cancel()
    await run_event_loop()
    assert len(made.room) == 2
    made.tenant = Tenants(Settings()).get(TenantKey("m", "", "other"))
    single = made.enter()
    await run_event_loop()
    for assignment in busy:
        made.done(assignment)
        await run_event_loop()
    # Turns of equal tokens: one of the two that are left, and the other team's.
    assert [task.done() for task in (*tasks[6:], single)] == [True, False, True]


async def test_shutdown_sends_everybody() -> None:
    clock, made = LoopClock(), Room()
    await made.learn(clock)
    tasks = [made.enter(i) for i in range(6)]
    await run_event_loop()
    made.dispatcher.close()
    assert all(assignment.is_running for assignment in await asyncio.gather(*tasks))
    assert len(made.room) == 0


async def test_teams_share_a_busy_backend() -> None:
    clock, made = LoopClock(), Room()
    await made.learn(clock)
    busy = [await made.enter() for _ in range(2)]
    crowd = [made.enter() for _ in range(20)]
    await run_event_loop()
    made.tenant = Tenants(Settings()).get(TenantKey("m", "", "other"))
    single = made.enter()
    await run_event_loop()
    for assignment in busy:
        made.done(assignment)
    await run_event_loop()
    assert single.done()
    assert sum(task.done() for task in crowd) == 1


class Arrival(NamedTuple):
    gap_s: float
    documents: tuple[int, ...]
    conversation: str
    patience_s: float | None


arrivals = st.lists(
    st.builds(
        Arrival,
        st.sampled_from([0.0, 0.0, 0.1, 1.0, 10.0]),
        st.lists(st.integers(0, 9), max_size=4, unique=True).map(tuple),
        st.sampled_from(["", "", "a", "b"]),
        st.sampled_from([None, None, None, 0.5, 5.0]),
    ),
    max_size=40,
)


class Client:
    """Sends requests through the room to simulated engines, and remembers what happens."""

    def __init__(self, made: Room) -> None:
        self.made = made
        self.engines = {b.name: VirtualEngine(lanes=1) for b in made.backends.all}
        self.waits: dict[int, float] = {}
        self.sent: list[int] = []

    async def run(self, number: int, arrival: Arrival) -> None:
        loop = asyncio.get_running_loop()
        started = loop.time()
        assignment = self.made.admission(*arrival.documents, conversation=arrival.conversation)
        async with asyncio.timeout(arrival.patience_s):
            await self.made.dispatcher.enter(assignment)
        with assignment:
            self.waits[number] = loop.time() - started
            self.sent.append(number)
            document = Document(f"prompt {number}", id=str(number))
            await self.engines[assignment.backend.name].prefill([document], [TOKENS])
            self.made.begun(assignment)
        self.made.dispatcher.update()

    async def run_all(self, every: Sequence[Arrival]) -> list[Any]:
        tasks = []
        for number, arrival in enumerate(every):
            await asyncio.sleep(arrival.gap_s)
            tasks.append(asyncio.create_task(self.run(number, arrival)))
        return await asyncio.gather(*tasks, return_exceptions=True)


@given(arrivals, st.integers(1, 2), st.sampled_from([None, 2]))
def test_everybody_is_sent_once_in_the_order_of_their_conversation_and_in_time(
    every: list[Arrival], replicas: int, limit: int | None
) -> None:
    with virtual_loop() as loop:
        made = Room(replicas=replicas, limit=limit)
        client = Client(made)
        for _ in range(3 * replicas):  # the pace is learned
            loop.run_until_complete(client.run_all([Arrival(5.0, (), "", None)]))
        for _ in range(3):
            loop.run_until_complete(client.run_all([Arrival(0.0, (), "", None)] * 4))
        client.sent.clear()
        client.waits.clear()
        results = loop.run_until_complete(client.run_all(every))
        assert len(made.room) == 0
        made.dispatcher.close()
        loop.run_until_complete(asyncio.sleep(0))
    assert {type(result) for result in results} <= {type(None), TimeoutError}
    served = [number for number, result in enumerate(results) if result is None]
    assert sorted(client.sent) == served
    for backend in made.backends.all:
        assert (backend.load.assigned, backend.load.running, backend.load.prefill_tokens) == (
            0,
            0,
            0,
        )
    if limit is None:
        assert all(wait <= MAX_WAIT_S + 1e-6 for wait in client.waits.values())
    if replicas == 1:
        for name in ("a", "b"):
            turns = [number for number in client.sent if every[number].conversation == name]
            assert turns == sorted(turns)


@given(st.lists(st.lists(st.integers(0, 9), max_size=4, unique=True).map(tuple), max_size=20))
def test_an_idle_backend_gets_every_request_at_once(contexts: list[tuple[int, ...]]) -> None:
    with virtual_loop() as loop:
        made = Room()
        client = Client(made)
        every = [Arrival(2.0, context, "", None) for context in contexts]
        loop.run_until_complete(client.run_all(every))
        made.dispatcher.close()
        loop.run_until_complete(asyncio.sleep(0))
    assert client.waits == dict.fromkeys(range(len(contexts)), 0.0)
    assert client.sent == list(range(len(contexts)))


def test_an_adaptive_proxy_says_what_it_does(engine: FakeEngine) -> None:
    settings = proxy_settings(engine.url, waiting_room={"mode": "adaptive"})
    with ProxyServer(settings) as proxy:
        ask(proxy.url, 1, 2, 3)
        assert read_metric(proxy.url, "ragboost_releases_total", how="at_once") == 1
        name = engine.url.partition("://")[2]
        limit = read_metric(proxy.url, "ragboost_backend_hold_limit_tokens", backend=name)
        assert limit == float("inf")
