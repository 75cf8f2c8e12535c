"""The digest of a model's weights notices every element and ignores where they were loaded from."""

import json

import pytest
import torch

from ragboost.chunk_cache.model.reusable_model import weights_digest

CONFIG = json.dumps({"hidden_size": 8, "_name_or_path": "/models/a", "text_config": {"layers": 2}})


def digest(*tensors: torch.Tensor, config: str = CONFIG) -> str:
    return weights_digest(config, [(str(number), each) for number, each in enumerate(tensors)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
def test_one_changed_element_anywhere_changes_the_digest(dtype: torch.dtype) -> None:
    weight = torch.arange(37 * 11).reshape(37, 11).to(dtype)
    before = digest(weight)

    for row in range(0, 37, 5):
        for column in range(11):
            changed = weight.clone()
            changed[row, column] = -changed[row, column] - 1
            assert digest(changed) != before
    assert digest(weight.clone()) == before


def test_changes_do_not_cancel_out() -> None:
    weight = torch.randn(64, 64, generator=torch.Generator().manual_seed(0))
    seen = {digest(weight)}

    for first in range(8):  # also of the bit that a sum of words would lose
        for second in range(first + 1, 8):
            changed = weight.clone()
            changed[first] *= -1
            changed[second] *= -1
            seen.add(digest(changed))
            swapped = weight.clone()
            swapped[[first, second]] = weight[[second, first]]
            seen.add(digest(swapped))
    assert len(seen) == 1 + 2 * 28


def test_the_digest_does_not_depend_on_how_a_tensor_lies_in_memory() -> None:
    weight = torch.randn(8, 6)
    wide = torch.zeros(8, 7)
    wide[:, 1:] = weight

    assert digest(wide[:, 1:]) == digest(weight)
    assert digest(weight.t().contiguous().t()) == digest(weight)
    assert digest(weight.t()) != digest(weight)


def test_another_directory_keeps_the_digest_and_another_configuration_does_not() -> None:
    weight = torch.ones(3)
    moved = CONFIG.replace("/models/a", "/elsewhere/b")
    other = CONFIG.replace('"layers": 2', '"layers": 3')

    assert digest(weight, config=moved) == digest(weight)
    assert digest(weight, config=other) != digest(weight)


def test_tensors_longer_than_a_piece_are_digested_to_the_end() -> None:
    weight = torch.zeros((1 << 20) * 8 + 3, dtype=torch.int8)
    changed = weight.clone()
    changed[-1] = 1

    assert digest(changed) != digest(weight)
