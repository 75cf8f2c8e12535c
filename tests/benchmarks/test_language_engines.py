"""What the comparison of engines on language reports."""

import pytest

pytest.importorskip("torch", reason="needs the extra engine")

import torch

from benchmarks.language.engines import compare, summarise


def test_equal_logits_are_equal_and_a_moved_token_shows() -> None:
    library = [torch.tensor([4.0, 1.0, 0.0]), torch.tensor([3.0, 2.0, 0.0])]
    engine = torch.stack(library).log_softmax(-1)
    moved = engine.clone()
    moved[1] = moved[1, [1, 0, 2]]

    same, other = compare(engine, library), compare(moved, library)

    assert same.difference == same.difference_reused == pytest.approx(0.0, abs=1e-6)
    assert same.kl == pytest.approx(same.kl_library)
    assert same.first_equal
    assert other.difference_reused == pytest.approx(1.0)
    assert not other.first_equal
    assert summarise([same, other])["first_equal"] == 1
