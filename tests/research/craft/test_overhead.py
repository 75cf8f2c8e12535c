"""The cost of fixing a chunk, against tables worked out by hand."""

import pytest

from ragboost.errors import ChunkCacheError
from research.craft.overhead import fix_overhead, num_to_fix


@pytest.mark.parametrize(
    ("impact", "overlap", "alpha", "overhead"),
    [
        (0.5, 0.5, 1.0, 0.25),
        (0.5, 0.5, 2.0, 0.5),
        (0.8, 0.0, 1.0, 0.8),
        (0.8, 0.0, 3.0, 1.0),  # clipped
        (0.8, 1.0, 3.0, 0.0),
        (0.8, 0.3, 0.0, 0.0),
    ],
)
def test_fix_overhead(impact: float, overlap: float, alpha: float, overhead: float) -> None:
    assert fix_overhead(impact, overlap, alpha=alpha) == pytest.approx(overhead)


@pytest.mark.parametrize(
    ("overhead", "num_tokens", "fixed"),
    [
        (0.25, 12, 3),
        (0.26, 12, 4),
        (0.0, 12, 0),
        (1.0, 12, 12),
        (0.01, 12, 1),
        (0.5, 0, 0),
        (0.1 * 3, 10, 3),
    ],
)
def test_num_to_fix(overhead: float, num_tokens: int, fixed: int) -> None:
    assert num_to_fix(overhead, num_tokens) == fixed


def test_a_negative_alpha_is_refused() -> None:
    with pytest.raises(ChunkCacheError, match="alpha must not be negative, got -1"):
        fix_overhead(0.5, 0.5, alpha=-1.0)
