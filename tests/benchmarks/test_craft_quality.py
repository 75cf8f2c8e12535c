"""What the page says about the order lists, on a small run with the reference model."""

from benchmarks.chunks.craft_quality import places
from benchmarks.chunks.reference import MODEL


def test_tokens_that_depend_on_other_chunks_are_found_by_change_best_and_by_mass_worst() -> None:
    found = places(MODEL, seed=101, asked=4)
    assert 1 <= found["change"] < found["peak"] < found["mass"] <= 12
    assert found["change"] < 4
    assert found["mass"] > 6.5  # worse than a list in any order
