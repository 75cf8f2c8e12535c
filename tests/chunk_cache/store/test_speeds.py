"""Loading against computing."""

import pytest

from ragboost.chunk_cache.store.workers import Speeds


def slow(num_loads: int = 4) -> Speeds:
    """Loading takes twice as long as computing."""
    speeds = Speeds()
    speeds.computed(10, 1.0)
    for _ in range(num_loads):
        speeds.loaded(10, 2.0)
    return speeds


def test_the_speed_of_computing_is_a_moving_average() -> None:
    speeds = Speeds()
    assert speeds.compute_s(100) is None
    speeds.computed(100, 1.0)
    speeds.computed(100, 2.0)  # 0.01 + 0.2 * (0.02 - 0.01)
    assert speeds.compute_s(100) == pytest.approx(1.2)


def test_loading_is_worth_it_while_it_is_not_slower_and_now_and_then_all_the_same() -> None:
    assert Speeds().is_worth_loading(), "nothing is known yet"
    assert slow(3).is_worth_loading(), "not enough is known"
    speeds = slow()
    answers = [speeds.is_worth_loading() for _ in range(9 + 17 + 33 + 33)]
    tries = [number for number, answer in enumerate(answers, 1) if answer]
    assert tries == [9, 26, 59, 92], "after 8, 16, 32, 32 refusals"


def test_one_pause_of_a_place_does_not_make_it_slow() -> None:
    """Of one request: its chunks are loaded in two threads."""
    speeds = Speeds()
    speeds.computed(10, 1.0)
    for _ in range(3):
        for seconds in (4.0, 4.0, 0.5, 0.5, 0.5):
            speeds.loaded(10, seconds)
            assert speeds.is_worth_loading()


def test_a_place_that_is_fast_again_is_asked_again_at_once() -> None:
    speeds = slow(5)
    assert [speeds.is_worth_loading() for _ in range(9)].count(True) == 1
    speeds.loaded(10, 0.5)
    assert all(speeds.is_worth_loading() for _ in range(8))
