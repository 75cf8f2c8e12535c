"""A place that hangs or fails costs hits: never a caller's time, never the end of the process."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ragboost.chunk_cache.store import background, load_table
from ragboost.chunk_cache.store.chunk import ChunkKV
from ragboost.chunk_cache.store.disk import DiskTier
from ragboost.chunk_cache.store.tiered import TieredStore
from ragboost.chunk_cache.store.workers import Breaker, Speeds
from tests.chunk_cache.store.chunks import make_chunk, same
from tests.chunk_cache.store.places import FailingPlace, HungPlace
from tests.eventually import DEADLINE_S, eventually


@pytest.fixture
def place() -> Iterator[HungPlace]:
    hung = HungPlace()
    yield hung
    hung.may_answer.set()


def test_no_call_of_an_engine_reaches_a_hung_place(place: HungPlace) -> None:
    now = [0.0]
    store = TieredStore(remote=place, waits=False, clock=lambda: now[0])
    place.chunks["stored"] = make_chunk(1)

    store.prefetch({"stored": 6, "other": 6})
    assert place.was_asked.acquire(timeout=DEADLINE_S)
    assert store.is_loading(["stored"])
    assert store.get("stored") is None
    assert store.put("new", make_chunk(2))
    assert "stored" not in store
    store.replace("new", make_chunk(3))
    store.discard("stored")
    store.forget(["stored"])
    assert store.version >= 0
    store.clear()
    now[0] = 1e6
    assert not store.is_loading(["stored", "other"]), "a request that waits computes at last"
    store.prefetch({"more": 6})
    assert not store.is_loading(["more"]), "nobody is asked any more"
    store.close()  # leaves the hung threads behind

    assert all(name.startswith("ragboost-") for name in place.threads)
    assert threading.current_thread().name not in place.threads


def test_a_place_that_was_hung_is_asked_again_later(place: HungPlace) -> None:
    now = [0.0]
    store = TieredStore(remote=place, waits=False, clock=lambda: now[0])
    place.chunks["a"] = make_chunk()
    store.prefetch({"b": 6})
    assert place.was_asked.acquire(timeout=DEADLINE_S)
    now[0] = background.HANG_S + 1
    store.prefetch({"a": 6})
    assert not store.is_loading(["a"])
    place.may_answer.set()
    now[0] += 60

    store.prefetch({"a": 6})

    eventually(lambda: store.get("a") is not None)
    store.close()


def test_a_request_waits_for_what_is_left_while_its_chunks_arrive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class OneByOne(HungPlace):
        def load(self, key: str) -> ChunkKV | None:
            may_arrive[key].wait()
            return make_chunk()

    monkeypatch.setattr(load_table, "MAX_WAIT_S", 5.0)
    now, speeds, chunks = [0.0], Speeds(), {"a": 6, "b": 6, "c": 6}
    may_arrive = {key: threading.Event() for key in chunks}
    speeds.computed(6, 1.0)
    store = TieredStore(remote=OneByOne(), waits=False, clock=lambda: now[0])
    store._tiers[0].speeds = speeds
    store.prefetch(chunks)
    now[0] = 2.9  # computing all three takes three seconds
    may_arrive["a"].set()
    eventually(lambda: store.get("a") is not None)
    now[0] = 4.8
    assert store.is_loading(["b"]), "two more take two seconds from then on"
    may_arrive["b"].set()
    eventually(lambda: store.get("b") is not None)
    assert store.is_loading(["c"])
    now[0] = 5.1
    assert not store.is_loading(["c"]), "not longer than five seconds in all"
    may_arrive["c"].set()
    store.close()


def test_a_request_waits_as_long_as_computing_takes_and_later_ones_prolong_nothing(
    place: HungPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load_table, "MIN_WAIT_S", 0.05)
    now = [0.0]
    store = TieredStore(remote=place, waits=False, clock=lambda: now[0])
    store._tiers[0].speeds.computed(6, 1.0)
    place.chunks["a"] = make_chunk()
    for now[0] in (0.0, 0.9):
        store.prefetch({"a": 6})
        assert store.is_loading(["a"]), "computing it takes a second"
    now[0] = 1.1
    store.prefetch({"a": 6})
    assert not store.is_loading(["a"])
    place.may_answer.set()
    eventually(lambda: store.get("a") is not None)
    store.close()


def test_what_was_removed_while_the_place_hung_is_not_found(place: HungPlace) -> None:
    store = TieredStore(remote=place, waits=False)
    place.chunks |= {"removed": make_chunk(1), "kept": make_chunk(2)}
    store.discard("removed")
    assert place.was_asked.acquire(timeout=DEADLINE_S)
    store.prefetch({"removed": 6, "kept": 6})
    place.may_answer.set()
    eventually(lambda: not store.is_loading(["removed", "kept"]))
    assert store.get("removed") is None
    assert same(store.get("kept"), make_chunk(2))
    store.close()
    assert "removed" not in place.chunks


def test_kv_for_which_the_queue_has_no_room_is_written_later(place: HungPlace) -> None:
    store = TieredStore(remote=place, waits=False, write_bytes=1)
    for number in range(4):
        store.put(str(number), make_chunk(number))
    place.may_answer.set()
    eventually(lambda: len(place.chunks) == 4)
    store.close()


def test_a_remote_store_is_asked_for_what_the_disk_lacks(place: HungPlace, tmp_path: Path) -> None:
    place.may_answer.set()
    disk = DiskTier(tmp_path, capacity_bytes=1 << 24)
    disk.save("near", make_chunk(1))
    place.chunks |= {"near": make_chunk(2), "far": make_chunk(3)}
    store = TieredStore(disk=disk, remote=place, waits=False)
    store.prefetch({"near": 6, "far": 6, "nowhere": 6})
    eventually(lambda: not store.is_loading(["near", "far", "nowhere"]))
    assert same(store.get("near"), make_chunk(1))
    assert same(store.get("far"), make_chunk(3))
    assert store.get("nowhere") is None
    store.close()


def test_a_place_that_fails_is_left_alone_for_a_while() -> None:
    now, place = [0.0], FailingPlace()
    place.may_answer.set()
    store = TieredStore(remote=place, waits=False, clock=lambda: now[0])
    for number in range(3):
        store.prefetch({str(number): 6})
        eventually(lambda: not store.is_loading(["0", "1", "2"]))
    asked = place.was_asked._value
    store.prefetch({"a": 6})
    assert not store.is_loading(["a"])
    assert (asked, place.was_asked._value) == (3, 3)
    now[0] = 1.5
    store.prefetch({"a": 6})
    eventually(lambda: place.was_asked._value == 4)
    store.close()


def test_pauses_double_and_end_with_a_success() -> None:
    now = [0.0]
    breaker = Breaker(name="store", clock=lambda: now[0])
    pauses = []
    for _ in range(8):
        breaker.failed(is_hung=True)
        begin = now[0]
        while breaker.is_open:
            now[0] += 1
        pauses.append(now[0] - begin)
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60]
    breaker.worked()
    breaker.failed()
    breaker.failed()
    assert not breaker.is_open


def test_what_a_place_has_lost_counts_as_evicted_and_what_it_never_had_as_absent(
    place: HungPlace,
) -> None:
    store = TieredStore(remote=place, waits=False)
    place.may_answer.set()
    for number in range(3):
        store.put(str(number), make_chunk(number))
    store.flush()
    place.chunks.pop("0")
    store.discard("1")
    store.flush()  # what was removed is gone
    store.forget()
    store.prefetch({str(number): 6 for number in range(4)})
    eventually(lambda: not store.is_loading([str(number) for number in range(4)]))
    assert store.stats()[-1].loads == {"loaded": 1, "evicted": 1, "absent": 2}
    store.close()


def test_a_place_that_loads_nothing_is_left_alone_although_it_says_what_it_has() -> None:
    """Such as a path that loses large packets: every request would wait for a timeout."""
    place = FailingPlace()
    place.may_answer.set()
    place.chunks |= {str(number): make_chunk(number) for number in range(9)}
    store = TieredStore(remote=place, waits=False, clock=lambda: 0.0)
    for number in range(3):
        store.prefetch({str(number): 6})
        eventually(lambda: not store._loads)
        store.put(str(number), make_chunk(number))  # it was computed, and the place has it
        assert store._tiers[0].drain()
    place.may_answer.clear()
    store.prefetch({"8": 6})
    assert not store.is_loading(["8"])
    place.may_answer.set()
    store.close()


def test_nobody_waits_while_a_slow_place_is_tried_again(place: HungPlace) -> None:
    store = TieredStore(remote=place, waits=False)
    speeds = store._tiers[0].speeds
    speeds.computed(6, 1.0)
    for _ in range(4):
        speeds.loaded(6, 2.0)
    tried = [
        number for number in range(12) if not store.prefetch({str(number): 6}) and store._loads
    ]
    assert tried[0] == 8
    assert not store.is_loading(["8"])
    place.chunks["8"] = make_chunk()
    place.may_answer.set()
    eventually(lambda: store.get("8") is not None)
    assert not speeds.is_slow
    store.close()
