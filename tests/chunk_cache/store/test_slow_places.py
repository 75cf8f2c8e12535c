"""Requests before places that are slow, stall, fail or hang, in virtual time: it costs hits, and
nobody waits for long."""

import math
import random
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import pytest

from ragboost.chunk_cache.store import background, load_table
from ragboost.chunk_cache.store.chunk import ChunkKV
from ragboost.chunk_cache.store.tiered import TieredStore
from ragboost.errors import StoreUnavailableError
from tests.chunk_cache.store.chunks import make_chunk
from tests.chunk_cache.store.places import Place
from tests.fakes.virtual_threads import VirtualThreads
from tests.kv_integrity import check_store

TOKENS, COMPUTE_S = 10, 0.1  # of a chunk
NUM_CHUNKS, PER_REQUEST, IN_MEMORY = 40, 4, 8
WELL_AT = 60.0  # when a place that was not is well again

Answer = Callable[[str, int, float], tuple[float, bool]]
"""Seconds of the n-th call of a verb at some time, and whether it fails."""


def loads(answer: Callable[[int, float], tuple[float, bool]]) -> Answer:
    """Return a place that does all but loading well."""
    return lambda verb, n, now: answer(n, now) if verb == "load" else (0.001, False)


class FullPlace(Place):
    """Has all chunks, as another engine has stored them."""

    def __init__(self, time: VirtualThreads, answer: Answer, chunks: dict[str, ChunkKV]) -> None:
        super().__init__()
        self.chunks.update(chunks)
        self._time, self._answer = time, answer
        self.num_calls: Counter[str] = Counter()

    def ask(self, verb: str) -> None:
        self.num_calls[verb] += 1
        seconds, fails = self._answer(verb, self.num_calls[verb], self._time.now)
        self._time.sleep(seconds)
        if fails:
            raise StoreUnavailableError("no answer")


class Shares(NamedTuple):
    """Of the time that computing all chunks of all requests takes; of the later half of them."""

    waited: float
    spent: float  # waiting and computing
    spent_later: float
    longest: float  # wait of a request, of its own time
    hit_at: float  # time of the first request from `WELL_AT` on that has a loaded chunk


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> VirtualThreads:
    virtual = VirtualThreads()
    monkeypatch.setattr(background, "time", virtual)
    monkeypatch.setattr(background, "Workers", virtual.workers)
    monkeypatch.setattr(load_table, "MIN_WAIT_S", 0.05)
    monkeypatch.setattr(load_table, "MAX_WAIT_S", 5.0)
    return virtual


def run(time: VirtualThreads, answer: Answer, *, num_requests: int = 200) -> Shares:
    """Send one request after the other."""
    choice = random.Random(0)
    chunks = {
        str(n): make_chunk(n, num_tokens=TOKENS, compute_s=COMPUTE_S) for n in range(NUM_CHUNKS)
    }
    size, place = chunks["0"].size_bytes, FullPlace(time, answer, chunks)
    store = TieredStore(
        remote=place,
        waits=False,
        clock=time.monotonic,
        host_bytes=IN_MEMORY * size,
        write_bytes=4 * size,
    )
    store.put("another", make_chunk(num_tokens=TOKENS, compute_s=COMPUTE_S))
    waited, computed, hits = list[float](), list[float](), list[float]()
    for _ in range(num_requests):
        keys = choice.sample(sorted(chunks), PER_REQUEST)
        asked_at, in_memory = time.now, {key for key in keys if key in store.memory}
        store.prefetch(dict.fromkeys(keys, TOKENS))
        while time.next_at and store.is_loading(keys):
            time.advance(0.002)
        waited.append(time.now - asked_at)
        missing = [key for key in keys if store.get(key) is None]
        computed.append(len(missing) * COMPUTE_S)
        if not in_memory.union(missing).issuperset(keys):
            hits.append(asked_at)
        time.advance(computed[-1])
        for key in missing:
            store.put(key, chunks[key])
        time.advance(0.1)
        check_store(store)
    whole = PER_REQUEST * COMPUTE_S
    later = waited[num_requests // 2 :] + computed[num_requests // 2 :]
    return Shares(
        sum(waited) / whole / num_requests,
        sum(waited + computed) / whole / num_requests,
        sum(later) / whole / (num_requests - num_requests // 2),
        max(waited) / whole,
        min((at for at in hits if at >= WELL_AT), default=math.inf),
    )


def test_a_fast_place_saves_most_of_the_time(time: VirtualThreads) -> None:
    shares = run(time, loads(lambda n, now: (0.1 * COMPUTE_S, False)))
    assert shares.spent < 0.15


@pytest.mark.parametrize(
    "answer",
    [
        lambda verb, n, now: (0.0, True),
        lambda verb, n, now: (4.0, True),
        lambda verb, n, now: (1e6, False),
        loads(lambda n, now: (4.0, True)),
        loads(lambda n, now: (1e6, False)),
        loads(lambda n, now: (20.0, False)),
        loads(lambda n, now: (1.5 * COMPUTE_S, False)),
        loads(lambda n, now: (5 * COMPUTE_S, False)),
    ],
    ids=["down", "times-out", "hangs", "stalls", "stalls-for-good", "trickles", "slow", "slower"],
)
def test_a_bad_place_makes_nobody_wait_for_long(time: VirtualThreads, answer: Answer) -> None:
    shares = run(time, answer)
    assert shares.waited < 0.06
    assert shares.spent_later < 0.83, "without a place it is 0.79: a fifth is in memory"
    assert shares.longest <= 1.01


@pytest.mark.parametrize(
    "answer",
    [
        lambda n, now: (0.001, False) if n % 2 else (3.0, False),
        lambda n, now: (0.001, False) if n % 2 else (4.0, True),
        lambda n, now: (4.0, True) if n % 3 else (0.001, False),
        lambda n, now: (3.0 if n % 3 == 0 else 0.001, False),
    ],
    ids=["every-second-slow", "every-second-fails", "two-of-three-fail", "every-third-slow"],
)
def test_a_place_that_is_bad_now_and_then_costs_little(
    time: VirtualThreads, answer: Callable[[int, float], tuple[float, bool]]
) -> None:
    """Less than a tenth more than without a place; waiting before slow loads of others is not
    measured."""
    assert run(time, loads(answer)).spent < 1.08


@pytest.mark.parametrize(
    ("seconds", "fails"), [(0.0, True), (4.0, True), (30.0, False), (2.0, False)]
)
def test_a_place_that_is_well_again_is_used_again(
    time: VirtualThreads, seconds: float, fails: bool
) -> None:
    shares = run(
        time,
        lambda verb, n, now: (seconds, fails) if now < WELL_AT else (0.01, False),
        num_requests=600,
    )
    assert shares.spent_later < 0.2
    assert shares.hit_at < WELL_AT + 33, "after a minute a pause takes 32 s, or 32 requests"
