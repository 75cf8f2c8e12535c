"""Pinned chunks stay, expired ones go, and neither grows without bound."""

import math

import pytest

from ragboost.chunk_cache.store import retention as module
from ragboost.chunk_cache.store.keys import PUBLIC, owner_prefix
from ragboost.chunk_cache.store.retention import Retention
from ragboost.chunk_cache.store.tiered import TieredStore
from tests.chunk_cache.store.chunks import make_chunk
from tests.chunk_cache.store.places import HungPlace
from tests.eventually import DEADLINE_S, eventually

SIZE = make_chunk().size_bytes


def test_a_pinned_chunk_stays_while_others_come_and_go() -> None:
    store = TieredStore(host_bytes=4 * SIZE)
    kept = Retention(store)
    store.put("pinned", make_chunk())
    assert kept.pin("pinned")
    for number in range(20):
        store.put(str(number), make_chunk(number))
    assert "pinned" in store
    kept.unpin("pinned")
    for number in range(20, 40):
        store.put(str(number), make_chunk(number))
    assert "pinned" not in store
    store.check_integrity()


def test_pins_never_take_more_than_half_of_the_memory() -> None:
    store = TieredStore(host_bytes=10 * SIZE)
    kept = Retention(store)
    for number in range(10):
        store.put(str(number), make_chunk(number))
    assert [kept.pin(str(number)) for number in range(10)] == [True] * 5 + [False] * 5
    for number in range(10, 30):
        assert store.put(str(number), make_chunk(number))
    store.check_integrity()
    kept.evict("0")
    store.clear()
    assert not store.memory.kept_bytes
    assert not store.is_kept("1")


def test_no_owner_keeps_others_from_pinning() -> None:
    greedy, second, public = (owner_prefix(salt) for salt in ("greedy", "second", PUBLIC))
    store = TieredStore(host_bytes=16 * SIZE)
    kept = Retention(store)
    for owner in (public, greedy, second):
        for number in range(5):
            store.put(f"{owner}-{number}", make_chunk(number))
    assert [kept.pin(f"{public}-{number}") for number in range(4)] == [True] * 4
    assert [kept.pin(f"{greedy}-{number}") for number in range(5)] == [True] * 4 + [False]
    assert [kept.pin(f"{second}-{number}") for number in range(5)] == [True] * 2 + [False] * 3
    assert [store.is_kept(f"{greedy}-{number}") for number in range(4)] == [False] * 2 + [True] * 2
    assert all(store.is_kept(f"{public}-{number}") for number in range(4))
    for number in range(20):
        store.put(str(number), make_chunk(number))
    assert f"{greedy}-0" not in store, "it is evicted like any other"
    assert f"{second}-1" in store


def test_a_pin_that_is_refused_ends_no_other() -> None:
    one, other = owner_prefix("one"), owner_prefix("other")
    store = TieredStore(host_bytes=100 * SIZE)
    sizes = {f"{one}-small": 1, f"{one}-large": 40, f"{other}-middle": 20}
    for seed, (key, size) in enumerate(sizes.items()):
        store.put(key, make_chunk(seed, num_tokens=6 * size))
    assert [store.keep(key) for key in sizes] == [True, True, False]
    assert [store.is_kept(key) for key in sizes] == [True, True, False]


def test_a_chunk_that_is_elsewhere_is_pinned_once_it_is_loaded() -> None:
    place = HungPlace()
    place.chunks["far"] = make_chunk()
    place.may_answer.set()
    store = TieredStore(remote=place, waits=False)
    kept = Retention(store)
    store._tiers[0]._known.put("far", None)
    store._tiers[0]._known.put("lost", None)
    assert kept.pin("far")
    assert kept.pin("lost")
    assert not kept.pin("nowhere")

    def is_settled() -> bool:
        kept.tend()
        return not kept._awaited

    eventually(is_settled)
    assert (store.is_kept("far"), store.is_kept("lost")) == (True, False)
    store.close()


def test_a_pin_waits_for_a_load_for_longer_than_a_request_would() -> None:
    """So do public documents after a restart, which come from a disk beside requests."""
    now, place = [0.0], HungPlace()
    place.chunks["far"] = make_chunk()
    store = TieredStore(remote=place, waits=False, clock=lambda: now[0])
    store.put("near", make_chunk(1))  # the time of computing is known
    kept = Retention(store)
    store._tiers[0]._known.put("far", None)
    assert kept.pin("far")
    kept.tend()
    now[0] = 2 * DEADLINE_S
    assert not store.is_loading(["far"])
    kept.tend()
    place.may_answer.set()
    eventually(lambda: not store.is_on_its_way("far"))
    kept.tend()
    assert store.is_kept("far")
    store.close()


@pytest.mark.parametrize("seconds", [0, 1e-9, 5, 1e300, math.inf])
def test_a_chunk_is_gone_when_its_time_has_come_and_not_before(seconds: float) -> None:
    now = [0.0]
    store = TieredStore(host_bytes=4 * SIZE)
    kept = Retention(store, clock=lambda: now[0])
    store.put("a", make_chunk())
    kept.pin("a")
    assert kept.expire("a", seconds)
    kept.tend()
    assert ("a" in store) is (seconds > 0)
    now[0] = min(seconds, module.MAX_SECONDS)
    kept.tend()
    assert "a" not in store
    assert kept.expires_in("a") is None


def test_an_expiry_can_be_taken_back() -> None:
    store = TieredStore(host_bytes=4 * SIZE)
    kept = Retention(store)
    store.put("a", make_chunk())
    kept.expire("a", 0)
    kept.expire("a", None)
    kept.tend()
    assert "a" in store


def test_what_is_not_stored_takes_no_place_among_expiries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ENTRIES", 2)
    store = TieredStore(host_bytes=8 * SIZE)
    kept = Retention(store)
    assert not kept.expire("nowhere", 60)
    for key in ("a", "b", "c"):
        store.put(key, make_chunk())
    assert [kept.expire(key, 60) for key in ("a", "b", "c", "a")] == [True, True, False, True]
    store.discard("a")  # as an eviction does
    assert kept.expire("c", 60)
    assert kept.expires_in("a") is None


def test_expiries_are_looked_through_only_when_one_is_due() -> None:
    now = [0.0]
    store = TieredStore(host_bytes=8 * SIZE)
    kept = Retention(store, clock=lambda: now[0])
    for key in ("a", "b"):
        store.put(key, make_chunk())
    kept.expire("a", 2)
    kept.expire("b", 1)
    due = []
    for now[0] in (0.5, 1.0, 1.5, 2.0):
        due.append(now[0] >= kept._next_due)
        kept.tend()
    assert due == [False, True, False, True]
    assert not store.keys("")


def test_a_hundred_thousand_pins_and_expiries_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ENTRIES", 100)
    place = HungPlace()
    store = TieredStore(remote=place, waits=False)
    for number in range(100_000):
        store._tiers[0]._known.put(str(number), None)
    kept = Retention(store)
    assert sum(kept.pin(str(number)) for number in range(100_000)) == 100
    assert sum(kept.expire(str(number), 60) for number in range(100_000)) == 100
    kept.tend()
    assert len(store._loads) <= module._MAX_LOADING
    place.may_answer.set()
    store.close()


def test_a_chunk_that_is_evicted_while_it_is_loaded_does_not_come_back() -> None:
    place = HungPlace()
    place.chunks["a"] = make_chunk()
    store = TieredStore(remote=place, waits=False)
    kept = Retention(store)
    store._tiers[0]._known.put("a", None)
    kept.pin("a")
    kept.tend()
    assert place.was_asked.acquire(timeout=60)
    kept.evict("a")
    place.may_answer.set()
    eventually(lambda: not place.chunks)
    kept.tend()
    assert "a" not in store
    assert store.get("a") is None
    store.close()


def test_no_owner_takes_all_places_among_expiries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ENTRIES", 8)
    store = TieredStore(host_bytes=64 * SIZE)
    kept = Retention(store)
    many, few = ([f"{owner * 16}{number}" for number in range(12)] for owner in "ab")
    for key in (*many, *few):
        store.put(key, make_chunk())
    assert [kept.expire(key, 60) for key in many] == [True] * 8 + [False] * 4
    assert [kept.expire(key, 60) for key in few] == [True] * 4 + [False] * 8
    assert [key in store for key in many[:8]] == [False] * 4 + [True] * 4  # the oldest, early
    assert all(key in store for key in (*many[8:], *few))
    assert [kept.expire(key, 60) for key in many[8:]] == [False] * 4
    store.discard(few[0])  # as an eviction does
    assert kept.expire(few[4], 60)
    for key in (*many, *few):
        kept.expire(key, None)
    assert (kept._num_expiries, kept._expiries) == (0, {})
