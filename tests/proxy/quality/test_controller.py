"""The controller keeps changed answers within a budget, whatever each ratio loses."""

import itertools
import math
import random
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ragboost.proxy.quality.controller import LADDER, RatioController, lower_bound, upper_bound

BUDGET = 0.02
# Checks within which a ratio that changes a share of the answers is left, with a probability of
# 95 %: the table of docs/chunk-cache.md.
WITHIN = {0.04: 360, 0.1: 120, 0.2: 50, 0.3: 35}
Loss = Callable[[int, int], float]


def run(loss: Loss, num: int, *, seed: int = 0, share: float = 1.0) -> tuple[list[bool], list[int]]:
    """Return for each request whether its answer is changed, and its level; a share is checked."""
    rng, controller = random.Random(seed), RatioController(BUDGET, ratio=0.15)
    changed, levels = [], []
    for n in range(num):
        level = controller.level
        is_probe = level == 0 and rng.random() < min(share, BUDGET)
        used = 1 if is_probe else level
        changed.append(used > 0 and rng.random() < loss(used, n))
        levels.append(level)
        if used and (is_probe or rng.random() < share):
            controller.add(is_changed=changed[-1], level=used)
    return changed, levels


@settings(max_examples=40, deadline=None)
@given(
    losses=st.lists(st.floats(0, 1), min_size=5, max_size=5).map(sorted),
    seed=st.integers(0, 2**32),
)
def test_the_changed_share_converges_under_the_budget_and_stays_there(
    losses: Sequence[float], seed: int
) -> None:
    changed, _ = run(lambda level, _: losses[level - 1], 20_000, seed=seed)

    # Each try of a bad ratio costs a few answers; chance adds about three deviations.
    assert sum(changed[:2_000]) / 2_000 <= 2 * BUDGET
    assert sum(changed) / 20_000 <= BUDGET + 3 * math.sqrt(BUDGET / 20_000)
    late = changed[10_000:]
    assert sum(late) / len(late) <= BUDGET + 3 * math.sqrt(BUDGET / len(late))


def test_a_ratio_without_loss_is_used_in_the_end() -> None:
    _, levels = run(lambda level, _: 0.0, 2_000)

    assert LADDER[levels[-1]] == 0.0


def test_the_most_that_stays_in_the_budget_is_used_most_of_the_time() -> None:
    losses = (0.0, 0.0, 0.3, 0.5, 0.8)
    _, levels = run(lambda level, _: losses[level - 1], 50_000)

    assert sum(level == 2 for level in levels[10_000:]) > 0.9 * 40_000


def test_a_bad_ratio_is_tried_less_and_less_often() -> None:
    _, levels = run(lambda level, _: 1.0 if level > 2 else 0.0, 50_000)
    tries = [n for n in range(1, 50_000) if levels[n] == 3 > levels[n - 1]]
    gaps = [late - early for early, late in itertools.pairwise(tries)]

    assert gaps == sorted(gaps)
    assert gaps[-1] > 8 * gaps[0]


def test_where_every_ratio_fails_answers_are_exact_but_for_probes() -> None:
    changed, levels = run(lambda *_: 1.0, 5_000)

    assert set(levels[100:]) == {0}
    assert sum(changed[100:]) / 4_900 <= BUDGET + 3 * math.sqrt(BUDGET / 4_900)


def test_reuse_comes_back_once_probes_are_good_again() -> None:
    _, levels = run(lambda _, n: 1.0 if n < 500 else 0.0, 40_000)

    assert levels[499] == 0
    assert LADDER[levels[-1]] == 0.0


@pytest.mark.parametrize("loss", WITHIN)
def test_a_sudden_change_is_caught_within_the_stated_checks(loss: float) -> None:
    late = 0
    for seed in range(200):
        rng, controller = random.Random(seed), RatioController(BUDGET, ratio=0.0)
        for _ in range(500):  # a model that loses nothing, then another one
            controller.add(is_changed=False, level=controller.level)
        checks, level = 0, controller.level
        while controller.level == level and checks < 2_000:
            controller.add(is_changed=rng.random() < loss, level=level)
            checks += 1
        late += checks > WITHIN[loss]

    assert late <= 0.05 * 200 + 6


def test_a_ratio_far_below_the_budget_is_hardly_ever_left_by_mistake() -> None:
    alarms = num = 0
    for seed in range(20):
        rng, controller = random.Random(seed), RatioController(BUDGET, ratio=0.0)
        for _ in range(5_000):
            level = controller.level
            controller.add(is_changed=rng.random() < BUDGET / 4, level=level)
            alarms, num = alarms + (controller.level < level), num + 1

    assert alarms / num < 1 / 1000


def test_checks_of_another_level_are_not_counted() -> None:
    controller = RatioController(BUDGET, ratio=0.15)
    for _ in range(100):
        controller.add(is_changed=True, level=5)

    assert controller.ratio == 0.15


@pytest.mark.parametrize(
    ("ratio", "first"), [(0.0, 0.0), (0.1, 0.15), (0.15, 0.15), (0.4, 0.5), (1.0, 0.5)]
)
def test_it_begins_at_the_ratio_of_the_engine_or_the_next_more_careful_one(
    ratio: float, first: float
) -> None:
    assert RatioController(BUDGET, ratio=ratio).ratio == first


@pytest.mark.parametrize("share", [0.0, 0.01, 0.1, 0.5])
@pytest.mark.parametrize("total", [10, 100, 1000])
def test_bounds_hold_as_often_as_they_say(share: float, total: int) -> None:
    rng, missed = random.Random(total), 0
    for _ in range(400):
        num = sum(rng.random() < share for _ in range(total))
        missed += not lower_bound(num, total, miss=0.025) <= share
        missed += not share <= upper_bound(num, total, miss=0.025)

    assert missed <= 0.05 * 400 + 15
