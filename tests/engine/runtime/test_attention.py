"""Rows at the end of a request's keys see those before them, within their window, and no others."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ragboost.chunk_cache.model.attention.backend import AttentionInputs
from ragboost.chunk_cache.model.attention.dense import DenseAttention
from ragboost.engine.runtime.attention import TrailingAttention


@given(
    num_before=st.integers(0, 150),
    num_rows=st.integers(1, 90),
    window=st.none() | st.integers(1, 200),
    softcap=st.none() | st.just(5.0),
)
@settings(max_examples=60, deadline=None)
def test_rows_of_a_request_attend_as_the_dense_reference_does(
    num_before: int, num_rows: int, window: int | None, softcap: float | None
) -> None:
    generator = torch.Generator().manual_seed(0)
    num_keys = num_before + num_rows
    inputs = AttentionInputs(
        torch.randn(1, 4, num_rows, 16, generator=generator),
        torch.randn(1, 2, num_keys, 16, generator=generator),
        torch.randn(1, 2, num_keys, 16, generator=generator),
        torch.arange(num_before, num_keys),
        scaling=0.25,
        window=window,
        softcap=softcap,
    )
    got = TrailingAttention().attend(inputs)
    torch.testing.assert_close(got, DenseAttention().attend(inputs), atol=1e-5, rtol=1e-5)
