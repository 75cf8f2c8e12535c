"""The load of other processes, with a lifetime, in routing and in limits."""

import random

from msgspec.structs import astuple

from ragboost.config import Settings
from ragboost.proxy.replicas.messages import LIFETIME_S, LoadBoard
from ragboost.proxy.routing.router import Router
from ragboost.proxy.upstream.backend import Load
from ragboost.proxy.upstream.backends import Backends


class Clock:
    """A clock that only `advance` moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


def make_backends(**backend: int) -> Backends:
    urls = [{"url": "http://127.0.0.1:1"}, {"url": "http://127.0.0.1:2"}]
    return Backends.of(Settings.model_validate({"backends": urls, "backend": backend}))


def make_board(backends: Backends, clock: Clock) -> tuple[LoadBoard, list[int]]:
    changes: list[int] = []
    return LoadBoard(backends.all, on_change=lambda: changes.append(1), clock=clock), changes


def test_loads_of_processes_add_up_until_they_expire() -> None:
    backends, clock = make_backends(), Clock()
    board, changes = make_board(backends, clock)
    first, second = backends.all

    board.put("a", {first.key: Load(1, 2, 300), "unknown": Load(9, 9, 9)})
    board.put("b", {first.key: Load(1, 1, 10), second.key: Load(0, 1, 5)})
    board.put("b", {first.key: Load(1, 1, 20)})
    assert first.elsewhere == Load(2, 3, 320)
    assert second.elsewhere == Load()

    clock.advance(LIFETIME_S / 2)
    board.put("b", {first.key: Load(1, 1, 20)})
    clock.advance(LIFETIME_S * 0.6)
    board.expire()

    assert first.elsewhere == Load(1, 1, 20)
    assert len(changes) == 4  # the repetition changed nothing


def test_negative_loads_count_as_none() -> None:
    backends, clock = make_backends(), Clock()
    board, _ = make_board(backends, clock)

    board.put("a", {backends.all[0].key: Load(-5, -5, -5)})

    assert backends.all[0].elsewhere == Load()


def test_a_negative_load_takes_nothing_from_the_others() -> None:
    backends, clock = make_backends(), Clock()
    board, _ = make_board(backends, clock)
    key = backends.all[0].key

    board.put("a", {key: Load(3, 4, 500)})
    board.put("b", {key: Load(-5, -5, -5)})

    assert backends.all[0].elsewhere == Load(3, 4, 500)


def test_random_reports_and_deaths_leave_the_sums_of_the_living() -> None:
    backends, clock, rng = make_backends(), Clock(), random.Random(1)
    board, _ = make_board(backends, clock)
    known: dict[str, tuple[float, dict[str, Load]]] = {}
    for _ in range(2000):
        if rng.random() < 0.2:
            clock.advance(rng.choice([0.01, 0.3, 1.2]))
            board.expire()
        source = f"p{rng.randrange(6)}"
        keys = [each.key for each in backends.all if rng.random() < 0.6]
        loads = {key: Load(*(rng.randrange(9) for _ in range(3))) for key in keys}
        board.put(source, loads)
        known[source] = (clock.now + LIFETIME_S, loads)
        known = {name: kept for name, kept in known.items() if kept[0] >= clock.now}
        board.expire()

        for each in backends.all:
            heard = [loads[each.key] for _, loads in known.values() if each.key in loads]
            columns = zip(*map(astuple, heard), strict=True) if heard else [(), (), ()]
            assert each.elsewhere == Load(*map(sum, columns))


def test_sources_are_bounded() -> None:
    backends, clock = make_backends(), Clock()
    board, _ = make_board(backends, clock)
    for number in range(3000):
        board.put(str(number), {backends.all[0].key: Load(1, 1, 1)})

    assert backends.all[0].elsewhere.running == 1024


def test_routing_avoids_a_backend_that_others_keep_busy() -> None:
    backends, clock = make_backends(), Clock()
    board, _ = make_board(backends, clock)
    first, second = backends.all
    router = Router(backends, Settings().router)
    assert router.choose(100, cached_tokens={}) is first

    board.put("a", {first.key: Load(1, 1, 1000)})
    assert router.choose(100, cached_tokens={}) is second

    clock.advance(2 * LIFETIME_S)
    board.expire()
    assert router.choose(100, cached_tokens={}) is first


def test_a_limit_counts_the_requests_of_others() -> None:
    backends, clock = make_backends(max_concurrency=2), Clock()
    board, _ = make_board(backends, clock)
    first = backends.all[0]

    first.load.running = 1
    assert first.has_room
    board.put("a", {first.key: Load(1, 1, 0)})
    assert not first.has_room


def test_own_loads_leave_out_idle_backends() -> None:
    backends, clock = make_backends(), Clock()
    board, _ = make_board(backends, clock)
    backends.all[1].load.assigned = 2

    assert board.own() == {backends.all[1].key: Load(0, 2, 0)}
