"""Intervals cover the truth, follow the groups, and promise nothing that was not seen."""

import numpy as np
import pytest

from ragboost.evaluation.bootstrap import paired_difference


def test_the_same_seed_gives_the_same_interval() -> None:
    rng = np.random.default_rng(1)
    before, after = rng.random(50), rng.random(50)

    one = paired_difference(before, after, groups=range(50), seed=3)

    assert one == paired_difference(before, after, groups=range(50), seed=3)
    assert one.low < one.mean < one.high
    assert one.mean == pytest.approx(float((after - before).mean()))


def test_intervals_at_95_percent_cover_the_true_difference_about_as_often() -> None:
    rng = np.random.default_rng(5)
    covered = 0
    for _ in range(200):
        difference = rng.choice([-1.0, 0.0, 1.0], size=80, p=[0.2, 0.5, 0.3])
        found = paired_difference(np.zeros(80), difference, groups=range(80))
        covered += found.low <= 0.1 <= found.high

    assert 180 <= covered <= 200


def test_turns_of_one_conversation_are_drawn_together() -> None:
    before = np.zeros(60)
    after = np.repeat([1.0, 0.0] * 10, 3)

    alone = paired_difference(before, after, groups=range(60))
    together = paired_difference(before, after, groups=np.repeat(range(20), 3).tolist())

    assert together.num_groups == 20
    assert together.high - together.low > 1.4 * (alone.high - alone.low)


def test_no_loss_among_few_questions_still_leaves_room_for_one() -> None:
    few = paired_difference([1.0] * 10, [1.0] * 10, groups=range(10))
    many = paired_difference([1.0] * 1000, [1.0] * 1000, groups=range(1000))

    assert few.low == pytest.approx(-0.308, abs=0.001)  # Clopper-Pearson for 0 of 10
    assert many.low == pytest.approx(-0.0037, abs=0.0001)
    assert few.high == -few.low


def test_a_large_one_sided_loss_is_a_loss() -> None:
    found = paired_difference([1.0] * 100, [0.0] * 30 + [1.0] * 70, groups=range(100))

    assert found.high < -0.1


def test_no_questions_say_nothing() -> None:
    assert paired_difference([], [], groups=[]) == (0.0, -1.0, 1.0, 0)
