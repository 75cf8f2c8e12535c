"""A chunk computed after its neighbours has seen them, keeps its place, and is turned at use."""

import pytest
import torch
from transformers.cache_utils import DynamicCache

from ragboost.chunk_cache.core.reuse import ChunkReuse
from ragboost.chunk_cache.model.adapter import ModelAdapter
from ragboost.chunk_cache.model.assemble import TokenSource
from ragboost.chunk_cache.store.influence import chunk_name
from ragboost.chunk_cache.store.keys import behind_key
from ragboost.chunk_cache.store.tiered import TieredStore
from tests.chunk_cache.families import build_adapter, make_prompt
from tests.chunk_cache.prompts import stored_kv

SYSTEM, CHUNKS, QUESTION = make_prompt()
A, B, C, D = CHUNKS


@pytest.fixture(scope="module")
def adapter() -> ModelAdapter:
    return build_adapter("llama")


@pytest.fixture
def reuse(adapter: ModelAdapter) -> ChunkReuse:
    return ChunkReuse(adapter, TieredStore())


def after(reuse: ChunkReuse, parts: list[list[int]], chunk: list[int]) -> DynamicCache:
    """An ordinary forward of the chunk over the assembled plain KV of what stands before it."""
    tokens = [*SYSTEM, *(token for part in parts for token in part)]
    assembly = reuse.assemble(
        SYSTEM, parts, [0], stored=[reuse.plain(SYSTEM, part) for part in parts]
    )
    cache = DynamicCache()
    for index, layer in enumerate(assembly.cache.layers):
        size = len(tokens)
        cache.update(layer.keys[:, :, :size].clone(), layer.values[:, :, :size].clone(), index)
    positions = torch.arange(len(tokens), len(tokens) + len(chunk))[None]
    with torch.no_grad():
        reuse.adapter.model(
            torch.tensor([chunk]), position_ids=positions, past_key_values=cache, use_cache=True
        )
    return cache


def test_a_primed_chunk_is_what_a_forward_over_its_neighbours_plain_kv_gives(
    reuse: ChunkReuse,
) -> None:
    kv = reuse.prime(SYSTEM, A, neighbours=[C, B])
    want = after(reuse, [C, B], A)
    assert (kv.base, kv.tokens) == (len(SYSTEM) + 40, tuple(A))
    for (keys, values), layer in zip(kv.layers, want.layers, strict=True):
        torch.testing.assert_close(keys, layer.keys[:, :, 46:66], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(values, layer.values[:, :, 46:66], atol=1e-5, rtol=1e-5)
    assert kv.exact_after is None  # B had not seen C
    assert kv.influence is not None
    assert kv.influence.context == (chunk_name(C), chunk_name(B))


def test_one_neighbour_makes_kv_that_is_exact_behind_it(reuse: ChunkReuse) -> None:
    reuse.precompute(SYSTEM, [B])
    kv = reuse.prime(SYSTEM, A, neighbours=[B])
    behind = reuse.assemble(SYSTEM, [B, A], QUESTION, stored=[stored_kv(reuse, B), kv])
    elsewhere = reuse.assemble(SYSTEM, [C, A], QUESTION, stored=[None, kv])
    assert behind.source[:46].eq(TokenSource.EXACT).all()
    assert elsewhere.source[26:46].eq(TokenSource.APPROXIMATE).all()


def test_a_primed_chunk_is_not_exact_where_its_plain_kv_would_be(reuse: ChunkReuse) -> None:
    kv = reuse.prime(SYSTEM, A, neighbours=[C, B])
    reuse.precompute(SYSTEM, [])
    assembly = reuse.assemble(SYSTEM, [A], QUESTION, stored=[kv])
    assert assembly.source[6:26].eq(TokenSource.APPROXIMATE).all()
    # Turned back to its place behind the system prompt: the values stay.
    got = assembly.cache.layers[1].values[:, :, 6:26]
    assert torch.equal(got, kv.layers[1][1])


def test_no_neighbours_is_plain_kv(reuse: ChunkReuse) -> None:
    kv = reuse.prime(SYSTEM, A, neighbours=[[]])
    assert kv is stored_kv(reuse, A)
    assert kv.exact_after is not None


def test_measuring_leaves_the_kv_plain(reuse: ChunkReuse) -> None:
    reuse.precompute(SYSTEM, CHUNKS)
    before = stored_kv(reuse, A)
    reuse.measure(SYSTEM, A, neighbours=[C, B])
    now = stored_kv(reuse, A)
    assert before is not None
    assert now is not None
    assert now.layers is before.layers
    assert now.exact_after == before.exact_after
    assert now.influence is not None
    assert now.influence.context == ()
    assert now.influence.a > 0


def test_prepared_kv_is_preferred_and_plain_kv_serves_where_it_is_gone(
    adapter: ModelAdapter,
) -> None:
    reuse = ChunkReuse(adapter, TieredStore())
    kv = reuse.prime(SYSTEM, A, neighbours=[C, B])
    plain = stored_kv(reuse, A)
    key = behind_key(reuse.library.key(A))
    assert reuse.store.put(key, kv)

    assert stored_kv(reuse, A) is kv
    reuse.store.discard(key)
    assert stored_kv(reuse, A) is plain
