"""Equation 16 by hand, and loading against computing."""

import pytest

from ragboost.chunk_cache.store.speeds import Speeds, preload_depth


@pytest.mark.parametrize(
    ("num_layers", "prefill_s", "load_s", "depth"),
    [
        (5, 1.0, 2.0, 3),  # Cache-Craft figure 19: 4 * (1 - 1/2) + 1
        (5, 1.0, 1.0, 1),  # loads as fast as it computes: one ahead
        (5, 2.0, 1.0, 1),
        (5, 0.0, 1.0, 5),  # nothing to compute meanwhile: all
        (5, 1.0, 1e9, 5),  # 4.99.. rounds up, never above the layers
        (32, 0.25, 1.0, 25),  # 31 * 3/4 + 1 = 24.25
        (28, 1.0, 9.0, 25),  # FusionRAG 4.2: 27 * 8/9 + 1 = 25 of 28
        (4, 2.0, 3.0, 2),  # 3 * (1/3) + 1 = 2 exactly, whatever the floats say
        (1, 1.0, 5.0, 1),
        (7, 0.0, 0.0, 1),
    ],
)
def test_preload_depth(num_layers: int, prefill_s: float, load_s: float, depth: int) -> None:
    assert preload_depth(num_layers, prefill_s=prefill_s, load_s=load_s) == depth


@pytest.mark.parametrize("num_layers", [1, 2, 5, 28])
@pytest.mark.parametrize("load_s", [0.1, 0.9, 1.0, 1.5, 2.0, 7.3, 100.0])
def test_no_layer_is_waited_for_behind_the_preloaded_ones_and_one_fewer_is_too_few(
    num_layers: int, load_s: float
) -> None:
    def waits(depth: int) -> bool:
        """Layer l (from 0) is computed at depth * load + l * prefill at the earliest."""
        start = depth * load_s / num_layers
        return any(
            (layer + 1) * load_s / num_layers > start + layer * 1.0 / num_layers + 1e-9
            for layer in range(num_layers)
        )

    depth = preload_depth(num_layers, prefill_s=1.0, load_s=load_s)
    assert not waits(depth)
    assert depth == 1 or waits(depth - 1)


def test_speeds_are_moving_averages() -> None:
    speeds = Speeds()
    assert speeds.load_s(100) is None
    assert speeds.compute_s(100) is None
    speeds.loaded(100, 1.0)
    speeds.loaded(100, 2.0)  # 0.01 + 0.2 * (0.02 - 0.01)
    speeds.computed(10, 5.0)
    assert speeds.load_s(1000) == pytest.approx(12.0)
    assert speeds.compute_s(4) == pytest.approx(2.0)


def test_loading_is_worth_it_while_it_is_not_slower_and_now_and_then_all_the_same() -> None:
    speeds = Speeds()
    assert speeds.is_worth_loading(10**9, 1), "nothing is known yet"
    speeds.loaded(100, 1.0)
    speeds.computed(10, 1.0)
    assert speeds.is_worth_loading(100, 10)
    answers = [speeds.is_worth_loading(101, 10) for _ in range(64)]
    assert answers.count(True) == 2
    assert not answers[0]
