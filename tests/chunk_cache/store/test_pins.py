"""Pinned chunks stay, wherever they were, and pins are bounded."""

from ragboost.chunk_cache.store.keys import PUBLIC, owner_prefix
from ragboost.chunk_cache.store.tiered import TieredStore
from tests.chunk_cache.store.chunks import make_chunk
from tests.chunk_cache.store.places import HungPlace
from tests.eventually import DEADLINE_S, eventually

SIZE = make_chunk().size_bytes


def pin(store: TieredStore, key: str) -> bool:
    return store.pin({key: 0}) == {key}


def test_a_pinned_chunk_stays_while_others_come_and_go() -> None:
    store = TieredStore(host_bytes=4 * SIZE)
    store.put("pinned", make_chunk())
    assert pin(store, "pinned")
    for number in range(20):
        store.put(str(number), make_chunk(number))
    assert "pinned" in store
    store.release("pinned")
    for number in range(20, 40):
        store.put(str(number), make_chunk(number))
    assert "pinned" not in store
    store.check_integrity()


def test_pins_never_take_more_than_half_of_the_memory() -> None:
    store = TieredStore(host_bytes=10 * SIZE)
    for number in range(10):
        store.put(str(number), make_chunk(number))
    assert [pin(store, str(number)) for number in range(10)] == [True] * 5 + [False] * 5
    for number in range(10, 30):
        assert store.put(str(number), make_chunk(number))
    store.check_integrity()
    store.discard("0")
    store.clear()
    assert not store.memory.kept_bytes
    assert not store.is_kept("1")


def test_no_owner_keeps_others_from_pinning() -> None:
    greedy, second, public = (owner_prefix(salt) for salt in ("greedy", "second", PUBLIC))
    store = TieredStore(host_bytes=16 * SIZE)
    for owner in (public, greedy, second):
        for number in range(5):
            store.put(f"{owner}-{number}", make_chunk(number))
    assert [pin(store, f"{public}-{number}") for number in range(4)] == [True] * 4
    assert [pin(store, f"{greedy}-{number}") for number in range(5)] == [True] * 4 + [False]
    assert [pin(store, f"{second}-{number}") for number in range(5)] == [True] * 2 + [False] * 3
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


def far_store(*keys: str, **options: object) -> tuple[TieredStore, HungPlace]:
    """Return a store that knows chunks to be in a place that does not answer yet, which has all
    but those called lost."""
    place = HungPlace()
    place.chunks |= {key: make_chunk() for key in keys if key != "lost"}
    store = TieredStore(remote=place, waits=False, **options)  # type: ignore[arg-type]
    for key in keys:
        store._tiers[0]._known.put(key, None)
    return store, place


def test_a_chunk_that_is_elsewhere_is_pinned_once_it_is_loaded() -> None:
    store, place = far_store("far", "lost")
    assert store.pin({"far": 0, "lost": 0, "nowhere": 0}) == {"far", "lost"}
    place.may_answer.set()
    eventually(lambda: not (store.is_on_its_way("far") or store.is_on_its_way("lost")))
    assert (store.is_kept("far"), store.is_kept("lost")) == (True, False)
    assert not store._to_pin
    store.close()


def test_a_pin_waits_for_a_load_for_longer_than_a_request_would() -> None:
    """So do public documents after a restart, which come from a disk beside requests."""
    now = [0.0]
    store, place = far_store("far", clock=lambda: now[0])
    store.put("near", make_chunk(1))  # the time of computing is known
    assert pin(store, "far")
    now[0] = 2 * DEADLINE_S
    assert not store.is_loading(["far"])
    place.may_answer.set()
    eventually(lambda: store.is_kept("far"))
    store.close()


def test_a_pin_that_is_taken_back_while_its_chunk_is_loaded_does_not_hold() -> None:
    store, place = far_store("far")
    assert pin(store, "far")
    store.release("far")
    place.may_answer.set()
    eventually(lambda: not store.is_on_its_way("far"))
    assert "far" in store.memory
    assert not store.is_kept("far")
    store.close()


def test_the_pins_that_wait_are_bounded() -> None:
    store, place = far_store(*map(str, range(30_000)))
    store.pin(dict.fromkeys(map(str, range(30_000)), 0))
    assert len(store._loads) == len(store._to_pin) < 20_000
    place.may_answer.set()
    store.close()


def test_a_chunk_that_is_evicted_while_it_is_loaded_does_not_come_back() -> None:
    store, place = far_store("a")
    assert pin(store, "a")
    assert place.was_asked.acquire(timeout=DEADLINE_S)
    store.discard("a")
    place.may_answer.set()
    eventually(lambda: not place.chunks)
    assert "a" not in store
    assert store.get("a") is None
    store.close()
