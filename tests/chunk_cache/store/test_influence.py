"""Cache-Craft's formulas, each against a table worked out by hand."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ragboost.chunk_cache.store.influence import (
    Influence,
    adjusted_overlap,
    chunk_name,
    context_impact,
    order_penalty,
    prefix_overlap,
)
from ragboost.errors import ChunkCacheError
from research.craft.overhead import fix_overhead

NAMES = st.lists(st.sampled_from("ABCDEFG"), max_size=7, unique=True)


@pytest.mark.parametrize(
    ("inter", "prefix", "beta"),
    [
        # The paper's two cases (section 3.1): C3 was stored after C1 C2.
        ({"C1": 3.0, "C2": 1.0}, ["C4", "C2"], 0.25),
        ({"C1": 3.0, "C2": 1.0}, ["C5", "C6"], 0.0),
        ({"C1": 3.0, "C2": 1.0}, ["C1", "C2"], 1.0),
        ({"C1": 3.0, "C2": 1.0}, ["C2", "C1"], 1.0),
        ({"C1": 3.0, "C2": 1.0}, ["C9", "C2", "C1", "C8"], 1.0),
        # 0 / 0: stored without a context, and a context that was not looked at.
        ({}, ["C1"], 0.0),
        ({}, [], 0.0),
        ({"C1": 0.0}, ["C1", "C2"], 1.0),
        ({"C1": 0.0, "C2": 0.0}, ["C2"], 0.0),
        ({"C1": 0.0, "C2": 2.0}, ["C2"], 1.0),
        ({"C1": 1.0}, [], 0.0),
    ],
)
def test_prefix_overlap(inter: dict[str, float], prefix: list[str], beta: float) -> None:
    assert prefix_overlap(inter, prefix) == pytest.approx(beta)


@pytest.mark.parametrize(
    ("old", "new", "gamma"),
    [
        ("ABC", "ABC", 0.0),
        ("ABC", "CBA", 1.0),
        ("ABC", "BAC", 1 / 3),
        ("ABC", "CAB", 2 / 3),
        ("ABCD", "DXAYC", 2 / 3),  # common: A C D against D A C
        ("AB", "BA", 1.0),
        # Fewer than two common chunks have no order.
        ("ABC", "B", 0.0),
        ("ABC", "XYZ", 0.0),
        ("", "ABC", 0.0),
        ("A", "", 0.0),
        # A repeated chunk counts where it stands first.
        ("ABA", "AB", 0.0),
        ("AB", "ABA", 0.0),
        ("AB", "BAB", 1.0),
    ],
)
def test_order_penalty(old: str, new: str, gamma: float) -> None:
    assert order_penalty(list(old), list(new)) == pytest.approx(gamma)


@settings(max_examples=60)
@given(NAMES, NAMES)
def test_order_penalty_is_a_symmetric_share(old: list[str], new: list[str]) -> None:
    gamma = order_penalty(old, new)
    assert 0.0 <= gamma <= 1.0
    assert gamma == pytest.approx(order_penalty(new, old))
    common = [name for name in old if name in new]
    if len(common) > 1:
        assert order_penalty(old, new) + order_penalty(old, new[::-1]) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("beta", "gamma", "adjusted"), [(1, 0, 1), (1, 1, 0), (0.5, 1 / 3, 1 / 3), (0, 0, 0)]
)
def test_adjusted_overlap(beta: float, gamma: float, adjusted: float) -> None:
    assert adjusted_overlap(beta, gamma) == pytest.approx(adjusted)


@pytest.mark.parametrize(
    ("a", "b", "default", "literal"),
    [
        (1.0, 1.0, 0.5, 1 / (1 + math.exp(-1))),
        (1.0, 3.0, 0.25, 1 / (1 + math.exp(-1 / 3))),
        (3.0, 1.0, 0.75, 1 / (1 + math.exp(-3))),
        (0.0, 1.0, 0.0, 0.5),  # a chunk that needs nobody costs half of itself in the printed form
        (1.0, 0.0, 1.0, 1.0),
        (0.0, 0.0, 0.0, 0.5),
    ],
)
def test_context_impact(a: float, b: float, default: float, literal: float) -> None:
    assert context_impact(a, b) == pytest.approx(default)
    assert context_impact(a, b, literal=True) == pytest.approx(literal)


def test_the_default_impact_is_the_sigmoid_of_the_logarithm() -> None:
    a, b = 0.3, 1.7
    assert context_impact(a, b) == pytest.approx(1 / (1 + math.exp(-math.log(a / b))))


def test_senseless_numbers_are_refused() -> None:
    with pytest.raises(ChunkCacheError, match="attention cannot be negative"):
        context_impact(-0.1, 1.0)


def test_the_overhead_of_a_chunk_follows_from_its_influence() -> None:
    # beta = 3/4 (C1 is back), gamma = 0, CCI = 0.2/0.8 = 0.25: CFO = 2 * 0.25 * 0.25.
    influence = Influence(("C1", "C2"), (3.0, 1.0), a=0.2, b=0.6, order=(1, 0))
    assert influence.overlap(["C0", "C1"]) == pytest.approx(0.75)
    overlap = influence.overlap(["C0", "C1"])
    assert fix_overhead(influence.impact(), overlap, alpha=2.0) == pytest.approx(0.125)
    assert influence.overlap(["C1", "C2"]) == 1.0
    assert influence.overlap(["C2", "C1"]) == 0.0  # gamma 1
    literal = 1 / (1 + math.exp(-1 / 3))
    assert influence.impact(literal=True) == pytest.approx(literal)


def test_a_chunk_that_stood_twice_in_a_context_counts_with_both() -> None:
    influence = Influence(("C1", "C2", "C1"), (1.0, 1.0, 2.0), a=0.2, b=0.6, order=(0,))
    assert influence.overlap(["C1"]) == pytest.approx(0.75)


def test_chunks_are_named_by_their_ids() -> None:
    assert chunk_name([1, 23]) != chunk_name([12, 3])
    assert chunk_name([1, 2]) == chunk_name((1, 2))
