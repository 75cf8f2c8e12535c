"""Loading against computing."""

import pytest

from ragboost.chunk_cache.store.speeds import Speeds


def test_speeds_are_moving_averages() -> None:
    speeds = Speeds()
    assert speeds._load_s is None
    assert speeds.compute_s(100) is None
    speeds.loaded(100, 1.0)
    speeds.loaded(100, 2.0)  # 0.01 + 0.2 * (0.02 - 0.01)
    speeds.computed(10, 5.0)
    assert speeds._load_s == pytest.approx(0.012)
    assert speeds.compute_s(4) == pytest.approx(2.0)


def test_loading_is_worth_it_while_it_is_not_slower_and_now_and_then_all_the_same() -> None:
    speeds = Speeds()
    assert speeds.is_worth_loading(), "nothing is known yet"
    speeds.loaded(10, 1.0)
    speeds.computed(10, 1.0)
    assert speeds.is_worth_loading()
    speeds.loaded(10, 2.0)
    answers = [speeds.is_worth_loading() for _ in range(64)]
    assert answers.count(True) == 2
    assert not answers[0]
