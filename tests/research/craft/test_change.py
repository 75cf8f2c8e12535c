"""What differs between versions of a chunk is what its context decided."""

import pytest
import torch

from ragboost.chunk_cache.core.reuse import ChunkReuse
from ragboost.chunk_cache.model.adapter import ModelAdapter
from ragboost.chunk_cache.store.influence import chunk_name
from ragboost.chunk_cache.store.tiered import TieredStore
from research.craft.change import kv_change, relative_change
from research.craft.reuse import CraftReuse
from tests.chunk_cache.families import build_adapter, make_prompt

SYSTEM, CHUNKS, QUESTION = make_prompt()
A, B, C, D = CHUNKS


@pytest.fixture(scope="module")
def adapter() -> ModelAdapter:
    return build_adapter("llama")


def test_relative_change_by_hand() -> None:
    """Two tokens of one head: squared lengths 1 and 3, mean 2; they move by squares 4 and 1."""
    old = torch.tensor([[[[1.0, 0.0], [1.0, 2.0**0.5]]]])
    new = old + torch.tensor([[[[0.0, 2.0], [1.0, 0.0]]]])
    assert relative_change([old], [new]).tolist() == pytest.approx([2.0, 0.5])
    assert relative_change([old, old], [new, old]).tolist() == pytest.approx([2.0, 0.5])


def test_a_chunk_is_as_far_from_itself_elsewhere_as_rounding(adapter: ModelAdapter) -> None:
    reuse = ChunkReuse(adapter, TieredStore())
    near, far = (reuse.compute(system, A) for system in ([], [5]))
    here = kv_change(adapter, near, near)
    other = kv_change(adapter, near, far)  # one token stands before it
    assert here.max() < 1e-10
    assert other.min() > 1e-6
    assert kv_change(adapter, far, near).tolist() == pytest.approx(other.tolist(), rel=0.2)


def test_versions_and_plain_kv_are_compared_when_a_version_is_kept(adapter: ModelAdapter) -> None:
    craft = CraftReuse(ChunkReuse(adapter, TieredStore()), order="change", early_stop=False)
    craft.prefill(SYSTEM, [A, B], QUESTION)
    (first,) = craft.variants.of(chunk_name(B))
    plain = craft.reuse.plain(SYSTEM, B)
    one = craft.reuse.store.get(first.key)
    assert one is not None
    change = kv_change(adapter, one, plain)
    assert craft.variants.by_change(chunk_name(B)) == tuple(
        change.argsort(descending=True, stable=True).tolist()
    )

    craft.alpha = 1e6
    craft.prefill(SYSTEM, [C, D, B], QUESTION)

    _, second = craft.variants.of(chunk_name(B))
    two = craft.reuse.store.get(second.key)
    assert two is not None
    change += kv_change(adapter, two, plain) + kv_change(adapter, two, one)
    order = tuple(change.argsort(descending=True, stable=True).tolist())
    assert craft.variants.by_change(chunk_name(B)) == order
    craft.alpha = 1.0
    planned = craft.plan(SYSTEM, [D, B], QUESTION).chunks[1]
    assert 0 < planned.num_computed < len(B)
    assert {p - planned.start for p in planned.fixed} == set(order[: planned.num_computed])
