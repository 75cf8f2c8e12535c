"""Orders of events that a place's threads must survive: full queues, late answers, dead threads."""

import threading
from collections.abc import Iterator

import pytest

from ragboost.chunk_cache.store import background, load_table, workers
from ragboost.chunk_cache.store.chunk import ChunkKV
from ragboost.chunk_cache.store.tiered import TieredStore
from ragboost.chunk_cache.store.workers import Speeds, Workers
from ragboost.errors import StoreUnavailableError
from tests.chunk_cache.store.chunks import make_chunk, same
from tests.chunk_cache.store.places import FailingPlace, HungPlace
from tests.eventually import DEADLINE_S, eventually


@pytest.fixture
def place() -> Iterator[HungPlace]:
    hung = HungPlace()
    yield hung
    hung.may_answer.set()


def run(function: object) -> threading.Thread:
    thread = threading.Thread(target=function, daemon=True)  # type: ignore[arg-type]
    thread.start()
    return thread


def test_closing_gives_up_on_a_writer_that_has_hung_for_long(place: HungPlace) -> None:
    now = [0.0]
    store = TieredStore(remote=place, waits=False, clock=lambda: now[0])
    store.put("a", make_chunk())
    assert place.was_asked.acquire(timeout=DEADLINE_S)
    now[0] = background.HANG_S + 1
    store.prefetch({"b": 6})  # notices the hang
    now[0] = 1e6  # the pause is over, and the writer still hangs
    closing = run(store.close)
    closing.join(DEADLINE_S)
    assert not closing.is_alive()


def test_closing_gives_up_on_a_place_that_answers_slowly() -> None:
    now, closing = [0.0], list[threading.Thread]()

    class SlowPlace(HungPlace):
        def save(self, key: str, chunk: ChunkKV) -> bool:
            saves.acquire()
            now[0] += background.HANG_S - 1  # slow, but no hang
            return super().save(key, chunk)

    slow, saves = SlowPlace(), threading.Semaphore(0)
    slow.may_answer.set()

    def clock() -> float:
        time = now[0]
        if threading.current_thread() in closing:
            saves.release()  # the time to close is known: it goes on as the closing thread looks
        return time

    store = TieredStore(remote=slow, waits=False, clock=clock)
    for number in range(50):
        store.put(f"chunk {number}", make_chunk())
    closing.append(threading.Thread(target=store.close, daemon=True))
    closing[0].start()
    closing[0].join(DEADLINE_S)
    assert not closing[0].is_alive()
    saves.release(50)
    eventually(lambda: not store._tiers[0]._writer._threads[0].is_alive())
    assert len(slow.chunks) < 50


def test_a_place_is_read_again_after_a_clear_that_failed_at_first() -> None:
    class NotCleared(HungPlace):
        num_failures = 1

        def clear(self) -> None:
            if self.num_failures:
                self.num_failures -= 1
                raise StoreUnavailableError("no answer")
            super().clear()

    place = NotCleared()
    place.may_answer.set()
    place.chunks["old"] = make_chunk(1)
    store = TieredStore(remote=place, waits=False)
    store.clear()
    store.flush()
    assert place.chunks.keys() == {"old"}
    store.prefetch({"asked": 6})  # nothing is written in between
    eventually(lambda: not place.chunks)
    place.chunks["new"] = make_chunk(2)  # of another engine
    store.prefetch({"new": 6})
    eventually(lambda: same(store.get("new"), make_chunk(2)))
    store.close()


def test_kv_queued_behind_a_full_queue_does_not_spin(
    place: HungPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "_MAX_QUEUED", 2)
    store = TieredStore(remote=place, waits=False, write_bytes=1)
    store.put("a", make_chunk())
    assert place.was_asked.acquire(timeout=DEADLINE_S)
    store.put("b", make_chunk(1))  # no room: written later
    for _ in range(4):
        store._tiers[0]._writer.submit(lambda: None)  # fill the queue
    place.may_answer.set()
    eventually(lambda: store._tiers[0].drain())
    store.put("c", make_chunk(2))
    eventually(lambda: {"b", "c"} <= place.chunks.keys())
    store.close()


def test_all_removals_reach_a_place_that_was_busy(
    place: HungPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands of chunks may expire at once; what stays would be found after a restart."""
    monkeypatch.setattr(workers, "_MAX_QUEUED", 2)
    place.chunks = {str(number): make_chunk(number) for number in range(20)}
    store = TieredStore(remote=place, waits=False)
    store.discard("0")
    assert place.was_asked.acquire(timeout=DEADLINE_S)
    for number in range(1, 20):
        store.discard(str(number))
    store.put("7", make_chunk(70))
    place.may_answer.set()
    eventually(lambda: place.chunks.keys() == {"7"})
    store.forget()
    store.prefetch({"7": 6})
    eventually(lambda: same(store.get("7"), make_chunk(70)))
    store.close()


def test_a_removal_that_fails_is_made_up_for_when_the_store_is_back() -> None:
    class Flaky(HungPlace):
        fails, num_failures = True, 0

        def remove(self, key: str) -> None:
            if self.fails:
                self.num_failures += 1
                raise StoreUnavailableError("no answer")
            super().remove(key)

    now, place = [0.0], Flaky()
    place.may_answer.set()
    place.chunks = {"a": make_chunk(), "b": make_chunk(1)}
    store = TieredStore(remote=place, waits=False, clock=lambda: now[0])
    store.discard("a")
    store.discard("b")
    assert store._tiers[0].drain()
    for number in range(20):
        store.prefetch({"a": 6, str(number): 6})
        eventually(lambda: not store._loads)
    assert store.get("a") is None, "it is not found in between"
    assert store._tiers[0].drain()
    assert place.num_failures <= 2, "nor does each request try again"
    place.fails, now[0] = False, background.REMOVE_AGAIN_S
    store.prefetch({"c": 6})  # anything that is asked of it
    eventually(lambda: not place.chunks)
    store.close()


def test_what_was_read_before_a_clear_is_not_known_after_it() -> None:
    class Slow(HungPlace):
        def load(self, key: str) -> ChunkKV | None:
            chunk = self.chunks.get(key)
            self.ask("load")
            return chunk

        def clear(self) -> None:
            self.chunks.clear()

    place = Slow()
    place.chunks["a"] = make_chunk()
    store = TieredStore(remote=place, waits=False)
    store.prefetch({"a": 6})
    assert place.was_asked.acquire(timeout=DEADLINE_S)
    store.clear()
    assert store._tiers[0].drain()
    place.may_answer.set()
    store.prefetch({"b": 6})
    eventually(lambda: not store.is_loading(["b"]))
    assert "a" not in store
    assert store.get("a") is None
    store.close()


def test_a_write_that_failed_is_made_up_for_when_the_store_is_back() -> None:
    class Flaky(HungPlace):
        fails = True

        def save(self, key: str, chunk: ChunkKV) -> bool:
            if self.fails:
                raise StoreUnavailableError("no answer")
            return super().save(key, chunk)

    now, place = [0.0], Flaky()
    place.may_answer.set()
    store = TieredStore(remote=place, waits=False, clock=lambda: now[0])
    store.put("a", make_chunk())
    store._tiers[0].drain()
    place.fails, now[0] = False, 100.0
    store.put("b", make_chunk(1))
    store._tiers[0].drain()
    eventually(lambda: {"a", "b"} <= place.chunks.keys())
    store.close()


def test_nobody_waits_again_for_a_chunk_that_was_just_missed(place: HungPlace) -> None:
    """Else a request would be told to ask again for as long as others ask for the same chunk."""
    now = [0.0]
    place.may_answer.set()
    store = TieredStore(remote=place, waits=False, clock=lambda: now[0])
    store.prefetch({"absent": 6})
    eventually(lambda: not store.is_loading(["absent"]))
    place.may_answer.clear()
    store.prefetch({"absent": 6})  # the next request with this document
    assert not store.is_loading(["absent"])
    now[0] = 60.0
    store.prefetch({"absent": 6})
    assert store.is_loading(["absent"]), "another engine may have stored it meanwhile"
    place.may_answer.set()
    store.close()


def test_a_chunk_that_was_stored_right_after_a_miss_is_found_when_it_has_left_memory(
    place: HungPlace,
) -> None:
    place.may_answer.set()
    store = TieredStore(remote=place, waits=False, clock=lambda: 0.0)
    store.prefetch({"a": 6})
    eventually(lambda: not store.is_loading(["a"]))
    store.put("a", make_chunk())
    store.flush()
    store.forget()
    store.prefetch({"a": 6})
    eventually(lambda: store.get("a") is not None)
    store.close()


def test_a_load_that_came_too_late_is_not_made_after_the_chunk_was_computed(
    place: HungPlace,
) -> None:
    store = TieredStore(remote=place, waits=False)
    store.prefetch({"first": 6, "beside": 6, "second": 6})
    for _ in ("first", "beside"):  # one thread each
        assert place.was_asked.acquire(timeout=DEADLINE_S)
    store.put("second", make_chunk(2))  # the request did not wait
    place.may_answer.set()
    eventually(lambda: not store.is_loading(["first", "beside", "second"]))
    store._tiers[0].drain()
    assert same(store.get("second"), make_chunk(2))
    asked = sum(place.was_asked.acquire(blocking=False) for _ in range(9))
    assert asked == 2, "to write: if it is there, and to save it; not to load it"
    store.close()


def test_no_more_than_so_many_chunks_are_on_their_way(
    place: HungPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load_table, "_MAX_LOADS", 10)
    place.chunks["last"] = make_chunk()
    store = TieredStore(remote=place, waits=False, clock=lambda: 0.0)
    for number in range(6):
        store.prefetch({f"{number}-{each}": 6 for each in range(4)})
    assert len(store._loads) == 10
    place.may_answer.set()
    eventually(lambda: not store._loads)
    store.prefetch({"last": 6})
    eventually(lambda: same(store.get("last"), make_chunk()))
    store.close()


def test_slow_misses_teach_that_asking_is_not_worth_it() -> None:
    speeds = Speeds()
    speeds.computed(100, 1.0)
    speeds.missed(100, 0.001)
    assert not speeds._loads, "a quick miss says nothing about loading"
    for _ in range(4):
        assert speeds.is_worth_loading()
        speeds.missed(100, 5.0)
    assert not speeds.is_worth_loading()


def test_the_rest_of_a_request_is_not_asked_of_a_place_that_fails() -> None:
    place = FailingPlace()
    place.may_answer.set()
    store = TieredStore(remote=place, waits=False, clock=lambda: 0.0)
    keys = [str(number) for number in range(20)]
    store.prefetch(dict.fromkeys(keys, 6))
    eventually(lambda: not store._loads)
    assert place.was_asked._value in (3, 4), (
        "two threads ask: one may be asking at the third failure"
    )
    store.close()


def test_a_request_does_not_wait_for_a_place_on_probation() -> None:
    now, place = [0.0], FailingPlace()
    place.may_answer.set()
    store = TieredStore(remote=place, waits=False, clock=lambda: now[0])
    store.prefetch({"a": 6, "b": 6, "c": 6})
    eventually(lambda: not store._loads)
    now[0] = 30.0  # the pause is over
    place.may_answer.clear()
    store.prefetch({"d": 6})
    assert not store.is_loading(["d"]), "it is asked, and nobody waits for the answer"
    assert place.was_asked._value >= 3
    place.may_answer.set()
    store.close()


def test_a_bug_in_a_piece_of_work_does_not_end_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    bugs: list[object] = []
    monkeypatch.setattr(threading, "excepthook", lambda bug: bugs.append(bug.exc_type))
    done, pool = threading.Event(), Workers(1, name="ragboost-test")

    def bug() -> None:
        raise TypeError("a bug")

    pool.submit(bug)
    pool.submit(done.set)
    assert done.wait(DEADLINE_S)
    pool.close(timeout_s=DEADLINE_S)
    eventually(lambda: bugs == [TypeError])
