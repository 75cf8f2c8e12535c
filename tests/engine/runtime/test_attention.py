"""Rows of a packed batch see the keys before them, within their window, and no others."""

from collections.abc import Sequence
from types import SimpleNamespace

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ragboost.chunk_cache.model.attention.backend import AttentionInputs
from ragboost.chunk_cache.model.attention.dense import DenseAttention
from ragboost.engine.runtime.attention import PackedCache, Segment, ragged_attention
from ragboost.engine.runtime.kv import KVLayout, RequestKV

LAYOUT = KVLayout(((2, 16, 16),), torch.float32, torch.device("cpu"))


def segment_of(rows: Sequence[int], generator: torch.Generator) -> Segment:
    positions = torch.tensor(sorted(rows))
    num_keys = int(positions[-1]) + 1
    kv = RequestKV(LAYOUT, num_keys)
    for tensor in kv.layers[0]:
        tensor.copy_(torch.randn(tensor.shape, generator=generator))
    return Segment([0] * len(positions), positions, num_keys, kv)


@given(
    requests=st.lists(
        st.one_of(
            st.lists(st.integers(0, 150), min_size=1, max_size=100, unique=True),
            st.integers(1, 90).map(lambda n: list(range(n))),  # a whole prompt
            st.integers(0, 90).map(lambda n: [n]),  # a decode row
        ),
        min_size=1,
        max_size=3,
    ),
    window=st.none() | st.integers(1, 200),
    softcap=st.none() | st.just(5.0),
)
@settings(max_examples=60, deadline=None)
def test_rows_of_several_requests_attend_as_the_dense_reference_does(
    requests: list[list[int]], window: int | None, softcap: float | None
) -> None:
    generator = torch.Generator().manual_seed(0)
    segments = [segment_of(rows, generator) for rows in requests]
    total = sum(len(segment.token_ids) for segment in segments)
    query = torch.randn(1, 4, total, 16, generator=generator)
    empty = torch.empty(0)

    got, _ = ragged_attention(
        SimpleNamespace(layer_idx=0),
        query,
        empty,
        empty,
        None,
        ragged=PackedCache(segments, 1),
        sliding_window=window,
        softcap=softcap,
    )

    first = 0
    for segment in segments:
        rows = slice(first, first + len(segment.token_ids))
        key, value = (tensor[None] for tensor in segment.kv.layers[0])
        inputs = AttentionInputs(
            query[:, :, rows],
            key,
            value,
            segment.positions,
            scaling=0.25,
            window=window,
            softcap=softcap,
        )
        expected = DenseAttention().attend(inputs).transpose(1, 2)
        torch.testing.assert_close(got[:, rows], expected, atol=1e-5, rtol=1e-5)
        first = rows.stop
