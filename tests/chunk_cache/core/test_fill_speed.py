"""An engine fills a prompt where this is expected to be faster than computing it."""

import random

import pytest

from ragboost.chunk_cache.core.fill_budget import FillSpeed, TimeLine


def measured(*, fixed_s: float, row_s: float, token_s: float) -> FillSpeed:
    speed, drawn = FillSpeed(), random.Random(1)
    for _ in range(40):
        rows, tokens = drawn.randrange(10, 500), drawn.randrange(10, 2000)
        speed.filling.add(rows, fixed_s + row_s * rows)
        speed.computing.add(tokens, 0.01 + token_s * tokens)
    return speed


def test_a_filling_must_save_more_than_its_fixed_time() -> None:
    speed = measured(fixed_s=0.08, row_s=0.0003, token_s=0.0002)
    assert not speed.is_faster(rows=70, saved_tokens=100)
    assert speed.is_faster(rows=120, saved_tokens=700)


def test_nothing_is_refused_before_both_are_measured() -> None:
    speed = FillSpeed()
    for _ in range(100):
        speed.filling.add(10, 1.0)
    assert speed.is_faster(rows=10, saved_tokens=10)


def test_a_refusal_is_tried_again_once_in_a_while() -> None:
    speed = measured(fixed_s=1.0, row_s=0.0, token_s=0.0001)
    tried = [speed.is_faster(rows=10, saved_tokens=100) for _ in range(640)]
    assert sum(tried) == 10


@pytest.mark.parametrize("counts", [[7] * 50, [5, 9] * 25])
def test_times_are_fixed_and_by_the_token(counts: list[int]) -> None:
    line = TimeLine()
    for count in counts:
        line.add(count, 2.0 + 0.5 * count)
    fixed, slope = line.fit()
    assert fixed + 7 * slope == pytest.approx(5.5)
    assert fixed >= 0
    if len(set(counts)) > 1:
        assert (fixed, slope) == (pytest.approx(2.0), pytest.approx(0.5))


def test_times_change() -> None:
    line = TimeLine()
    for scale in (1.0, 3.0):
        for count in range(400):
            line.add(count, scale * count)
    assert line.fit()[1] == pytest.approx(3.0, rel=0.05)
    assert TimeLine().fit() == (0.0, 0.0)
