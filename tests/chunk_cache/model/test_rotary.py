"""The frequencies of an engine's RoPE table are those it was computed with."""

import pytest
import torch

from ragboost.chunk_cache.model.rope import read_frequencies


@pytest.mark.parametrize(
    ("dtype", "limit"), [(torch.float64, 1e-12), (torch.float32, 1e-6), (torch.bfloat16, 1e-6)]
)
@pytest.mark.parametrize("scale", [1.0, 1.3])
def test_frequencies_are_read_within_the_tables_precision(
    dtype: torch.dtype, limit: float, scale: float
) -> None:
    frequencies = 10_000.0 ** (-torch.arange(0, 64, 2).double() / 64)
    angles = torch.arange(16_384).double()[:, None] * frequencies
    table = (torch.cat([angles.cos(), angles.sin()], -1) * scale).to(dtype)

    found = read_frequencies(table)

    assert (found - frequencies).abs().max() < limit
