"""Every backend sees the keys that its rows may see, and no others."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ragboost.chunk_cache.model.attention.backend import (
    AttentionBackend,
    AttentionInputs,
    exact_mask,
)
from ragboost.chunk_cache.model.attention.dense import DenseAttention, folded_attention
from ragboost.chunk_cache.model.attention.tiled import TiledAttention
from ragboost.chunk_cache.model.attention.varlen import VarlenAttention, find_runs
from tests.chunk_cache.model.attention.loop_attention import LoopAttention

BACKENDS: dict[str, type[AttentionBackend]] = {
    "dense": DenseAttention,
    "tiled": TiledAttention,
}


def make_inputs(
    positions: list[int], num_keys: int, *, window: int | None = None, seed: int = 0
) -> AttentionInputs:
    generator = torch.Generator().manual_seed(seed)
    query = torch.randn(1, 4, len(positions), 16, generator=generator)
    key = torch.randn(1, 2, num_keys, 16, generator=generator)
    value = torch.randn(1, 2, num_keys, 16, generator=generator)
    return AttentionInputs(query, key, value, torch.tensor(positions), scaling=0.25, window=window)


@st.composite
def scattered_rows(draw: st.DrawFn) -> tuple[list[int], int]:
    num_keys = draw(st.integers(1, 40))
    rows = draw(st.sets(st.integers(0, num_keys - 1), min_size=1))
    return sorted(rows), num_keys


@pytest.mark.parametrize("name", BACKENDS)
@given(rows=scattered_rows(), window=st.none() | st.integers(1, 12))
@settings(max_examples=12, deadline=None)
def test_a_back_end_equals_the_loop_reference(
    name: str, rows: tuple[list[int], int], window: int | None
) -> None:
    inputs = make_inputs(*rows, window=window)

    got = BACKENDS[name]().attend(inputs)

    torch.testing.assert_close(got, LoopAttention().attend(inputs), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", BACKENDS)
@given(rows=scattered_rows(), window=st.none() | st.integers(1, 12), data=st.data())
@settings(max_examples=10, deadline=None)
def test_a_row_depends_on_the_keys_of_the_exact_mask_and_on_no_other(
    name: str, rows: tuple[list[int], int], window: int | None, data: st.DataObject
) -> None:
    positions, num_keys = rows
    inputs = make_inputs(positions, num_keys, window=window)
    changed = data.draw(st.integers(0, num_keys - 1))
    value = inputs.value.clone()
    value[:, :, changed] += 1000.0
    other = AttentionInputs(
        inputs.query, inputs.key, value, inputs.positions, scaling=0.25, window=window
    )
    backend = BACKENDS[name]()

    moved = (backend.attend(inputs) - backend.attend(other)).abs().amax((0, 1, 3)) > 0

    allowed = [p >= changed and (window is None or changed > p - window) for p in positions]
    assert moved.tolist() == allowed


@pytest.mark.parametrize("name", BACKENDS)
def test_more_rows_than_a_tile_and_many_keys(name: str) -> None:
    generator = torch.Generator().manual_seed(1)
    positions = torch.randperm(700, generator=generator)[:300].sort().values.tolist()
    for window in (None, 100):
        inputs = make_inputs(positions, 700, window=window)
        want = DenseAttention().attend(inputs)
        torch.testing.assert_close(BACKENDS[name]().attend(inputs), want, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("extra", ["softcap", "sinks", "visible"])
def test_what_a_back_end_says_it_supports_is_right(name: str, extra: str) -> None:
    plain = make_inputs([2, 5, 6, 11], 12)
    options = {
        "softcap": {"softcap": 2.0},
        "sinks": {"sinks": torch.tensor([0.5, -1.0, 2.0, 0.0])},
        "visible": {"visible": torch.arange(12) % 3 != 1},
    }[extra]
    inputs = AttentionInputs(
        plain.query,
        plain.key,
        plain.value,
        plain.positions,
        scaling=0.25,
        **options,  # type: ignore[arg-type]
    )
    backend = BACKENDS[name]()

    assert backend.supports(inputs)
    assert not VarlenAttention().supports(inputs)
    want = LoopAttention().attend(inputs)
    torch.testing.assert_close(backend.attend(inputs), want, atol=1e-5, rtol=1e-5)


@given(rows=scattered_rows())
@settings(max_examples=50, deadline=None)
def test_runs_with_a_bottom_right_causal_mask_are_the_exact_mask(
    rows: tuple[list[int], int],
) -> None:
    positions, num_keys = torch.tensor(rows[0]), rows[1]
    runs = find_runs(positions)
    offsets, ends = runs.offsets.tolist(), runs.ends.tolist()

    parts = []
    for begin, stop, end in zip(offsets, offsets[1:], ends, strict=False):
        bottom_right = torch.ones(stop - begin, num_keys).tril(end - (stop - begin))
        parts.append(bottom_right.bool() & (torch.arange(num_keys) < end))

    assert torch.equal(torch.cat(parts), exact_mask(positions, num_keys))
    assert runs.longest == max(b - a for a, b in pairwise(offsets))


@pytest.mark.gpu
@pytest.mark.parametrize("kind", [TiledAttention, VarlenAttention])
def test_a_back_end_on_an_accelerator_equals_the_dense_one(kind: type[AttentionBackend]) -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs CUDA")
    cpu = make_inputs(sorted({*range(100, 164), *range(300, 332), 700, *range(990, 1000)}), 1000)
    query, key, value = (t.to("cuda", torch.bfloat16) for t in (cpu.query, cpu.key, cpu.value))
    inputs = AttentionInputs(query, key, value, cpu.positions.cuda(), scaling=0.25)

    want = DenseAttention().attend(inputs)

    torch.testing.assert_close(kind().attend(inputs), want, atol=0.02, rtol=0.02)


@given(rows=scattered_rows(), window=st.none() | st.integers(1, 12))
@settings(max_examples=20, deadline=None)
def test_heads_folded_into_rows_attend_as_shared_heads_do(
    rows: tuple[list[int], int], window: int | None
) -> None:
    inputs = make_inputs(*rows, window=window)
    mask = exact_mask(inputs.positions, inputs.num_keys, window=window)
    got = folded_attention(inputs.query, inputs.key, inputs.value, mask, scale=inputs.scaling)
    torch.testing.assert_close(got, DenseAttention().attend(inputs), atol=1e-5, rtol=1e-5)
