"""Focused chunks, worked out by hand, in the default and in the printed form of Alg. 1."""

from collections.abc import Callable

import pytest
import torch

from ragboost.chunk_cache.model.attention.backend import AttentionInputs
from research.craft.focus import FocusObserver, FocusTracker, largest_gap, literal_cut

Cut = Callable[[list[float]], frozenset[int] | None]


@pytest.mark.parametrize(
    ("attention", "default", "literal"),
    [
        # Gaps 5 1 1: one chunk stands out. Printed: -p log p is .240 .278 .278 for the gaps, so the
        # first gap after the first wins, and the cut stands before it.
        ([8.0, 3.0, 2.0, 1.0], {0}, {0}),
        # Gaps 1 6 1: two stand out. Printed: terms .260 .216 .260; the third wins: also two.
        ([3.0, 10.0, 9.0, 2.0], {1, 2}, {1, 2}),
        # Gaps 1 1 6 1: three stand out. Printed: terms .244 .244 .270 .244: two only.
        ([10.0, 9.0, 8.0, 2.0, 1.0], {0, 1, 2}, {0, 1}),
        # Gaps 1 1 18 1: the large gap's term is small exactly because it dominates.
        ([22.0, 21.0, 20.0, 2.0, 1.0], {0, 1, 2}, {0}),
        # No gap stands out: gaps 2 2 2, and 3 2 2 (the largest is 9/7 of the mean).
        ([7.0, 5.0, 3.0, 1.0], None, {0}),
        ([8.0, 5.0, 3.0, 1.0], None, {0}),
        # Equal attention has no gaps: 0/0 shares.
        ([1.0, 1.0, 1.0], None, None),
        # Two chunks have one gap; Alg. 1 needs two.
        ([3.0, 1.0], {0}, None),
        ([1.0], None, None),
        ([], None, None),
        # A gap of 0: 0 log 0 is 0. Terms 0, .347, .347 of gaps 0 2 2: the first of them.
        ([5.0, 5.0, 3.0, 1.0], None, {0}),
    ],
)
def test_cuts(attention: list[float], default: set[int] | None, literal: set[int] | None) -> None:
    assert largest_gap(attention) == default
    assert literal_cut(attention) == literal


def test_focus_is_settled_once_the_last_three_layers_agree() -> None:
    tracker = FocusTracker(8)
    assert tracker.update([5.0, 1.0, 0.9]) is None
    assert tracker.update([0.0, 9.0, 0.0]) is None  # sums 5, 10, 0.9: chunk 0 and 1
    assert tracker.update([0.0, 9.0, 0.0]) is None  # 5, 19, .9: chunk 1 alone
    assert tracker.update([0.0, 9.0, 0.0]) is None
    assert tracker.update([0.0, 9.0, 0.0]) == {1}


def test_the_default_waits_for_a_quarter_of_the_layers() -> None:
    default, literal = FocusTracker(32), FocusTracker(32, literal=True)
    layers = [[8.0, 3.0, 2.0, 1.0]] * 8
    assert [default.update(layer) for layer in layers] == [None] * 7 + [{0}]
    assert [literal.update(layer) for layer in layers] == [None, None] + [{0}] * 6


def test_layers_that_never_agree_have_no_focus() -> None:
    """As each layer adds more than all before, the highest chunk changes every time."""
    tracker = FocusTracker(8)
    layers = [[10.0**n if n % 3 == chunk else 0.0 for chunk in range(3)] for n in range(8)]
    assert [tracker.update(layer) for layer in layers] == [None] * 8


def test_no_clear_gap_in_any_layer_is_no_focus() -> None:
    tracker = FocusTracker(4)
    assert [tracker.update([3.0, 2.0, 1.0]) for _ in range(4)] == [None] * 4


def inputs_looking_at(slot: int) -> AttentionInputs:
    """Ten keys; rows 2, 3, 6, 8, 9, of which the last is the question and looks at one key."""
    key = torch.eye(10)[None, None] * 10
    query = torch.zeros(1, 1, 5, 10)
    query[0, 0, -1, slot] = 10.0
    rows = torch.tensor([2, 3, 6, 8, 9])
    return AttentionInputs(query, key, torch.zeros(1, 1, 10, 1), rows, scaling=1.0)


def test_the_rows_of_reused_chunks_out_of_focus_are_dropped_once() -> None:
    watch = FocusObserver(
        [(0, 3), (3, 5), (5, 7), (7, 9)], reused=[0, 1, 2], num_question=1, num_layers=8
    )
    looking = inputs_looking_at(3)

    kept = [watch(layer, looking) for layer in range(4)]

    # Chunk 1 is in focus, chunk 3 was missing and is computed whole: rows 2 and 6 stop.
    assert [k is None for k in kept] == [True, True, False, True]
    assert kept[2] is not None
    assert kept[2].tolist() == [1, 3, 4]
    assert watch.focused == {1}
    assert watch.layer == 3
    assert watch.num_saved == 2 * 5


def test_nothing_is_dropped_where_every_reused_row_is_in_focus() -> None:
    watch = FocusObserver([(0, 5), (5, 7), (7, 9)], reused=[0], num_question=1, num_layers=8)
    assert [watch(layer, inputs_looking_at(3)) for layer in range(8)] == [None] * 8
    assert watch.focused == {0}
    assert (watch.layer, watch.num_saved) == (None, 0)
