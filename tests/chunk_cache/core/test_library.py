"""Chunks are found by content, each tenant's by itself."""

from copy import copy
from dataclasses import replace
from types import SimpleNamespace

import pytest

from ragboost.chunk_cache.core.library import ChunkLibrary
from ragboost.chunk_cache.model.adapter import ModelAdapter
from ragboost.chunk_cache.store.tiered import TieredStore
from tests.chunk_cache.families import build_adapter, make_prompt
from tests.chunk_cache.prompts import exact_prefix, learn, make_library


@pytest.fixture(scope="module")
def adapter() -> ModelAdapter:
    return build_adapter("llama")


def test_a_tenant_does_not_find_the_chunks_of_others(adapter: ModelAdapter) -> None:
    library = make_library(adapter)
    system, chunks, _ = make_prompt()
    learn(library, adapter, system, chunks)

    assert library.find(library.key(chunks[0]), chunks[0]) is not None
    assert library.find(library.key(chunks[0], tenant="other"), chunks[0]) is None


def test_ranks_with_one_disk_do_not_find_each_others_heads(adapter: ModelAdapter) -> None:
    libraries = [ChunkLibrary.of(adapter, TieredStore())]
    for rank in range(2):
        one_of_two = copy(adapter)
        one_of_two.ranks = SimpleNamespace(rank=rank, size=2, joined=lambda digest: digest)
        libraries.append(ChunkLibrary.of(one_of_two, TieredStore()))
    assert len({library.key([1, 2, 3]) for library in libraries}) == 3


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0], [1, 2, 0], [1], [0]])
def test_kv_behind_others_serves_there_and_kv_of_the_first_place_serves_in_that(
    adapter: ModelAdapter, order: list[int]
) -> None:
    library = make_library(adapter)
    alone = exact_prefix(adapter, [3, 4, 5, 6])
    behind, first, later = replace(alone, base=20), replace(alone, base=2), replace(alone, base=9)
    chunk = library.key(alone.tokens)
    assert library.keys_to_load(chunk) == library.keys(chunk), "it is not known which there is"
    for number in order:
        kv, is_first = ((behind, False), (first, True), (later, True))[number]
        key = library.slot(chunk, is_first=is_first)
        if library.lacks(key, alone.tokens, is_first=is_first):
            assert library.add(key, kv, is_first=is_first)

    bases = {}
    for is_first in (False, True):
        found = library.find(chunk, alone.tokens, is_first=is_first)
        assert found is not None
        bases[is_first] = found.base
    assert bases == {
        False: 20 if 0 in order else 2,
        True: 2 if 1 in order else 20,
    }
    if len(order) > 1:
        assert len(library.keys_to_load(chunk)) == 1


def test_approximate_kv_replaces_no_exact_kv(adapter: ModelAdapter) -> None:
    library = make_library(adapter)
    alone = exact_prefix(adapter, [3, 4, 5, 6])
    exact, approximate = replace(alone, base=20, exact_after="digest"), replace(alone, base=2)
    key = library.key(alone.tokens)
    library.add(key, exact, is_first=True)
    library.add(key, approximate, is_first=True)

    found = library.find(key, alone.tokens)
    assert found is not None
    assert found.base == 20


def test_kv_of_other_frequencies_is_not_found(adapter: ModelAdapter) -> None:
    library = make_library(adapter)
    kv = replace(exact_prefix(adapter, [3, 4, 5, 6]), regime="other")
    key = library.key(kv.tokens)
    library.add(key, kv, is_first=True)

    assert library.find(key, kv.tokens) is None
