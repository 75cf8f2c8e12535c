"""A store in memory is bounded, and gives out what was put in."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ragboost.chunk_cache.store.chunk import ChunkKV
from ragboost.chunk_cache.store.tiered import TieredStore
from ragboost.errors import ChunkCacheError
from tests.kv_integrity import check_store


def make_chunk(num_tokens: int = 4) -> ChunkKV:
    layer = (torch.ones(1, 1, num_tokens, 2), torch.ones(1, 1, num_tokens, 2))
    return ChunkKV(tuple(range(num_tokens)), 3, (layer,), "regime", 3 + num_tokens)


def test_the_least_recently_used_chunk_goes_first() -> None:
    store = TieredStore(host_bytes=2 * make_chunk().size_bytes)
    store.put("a", make_chunk())
    store.put("b", make_chunk())
    store.get("a")

    store.put("c", make_chunk())

    assert ("a" in store, "b" in store, "c" in store) == (True, False, True)
    check_store(store)


def test_a_chunk_larger_than_the_store_is_not_kept_and_evicts_nothing() -> None:
    store = TieredStore(host_bytes=make_chunk().size_bytes)
    store.put("a", make_chunk())

    assert not store.put("large", make_chunk(5))
    assert "a" in store
    assert store.get("large") is None


def test_what_was_given_out_stays_valid_after_an_eviction_and_a_replacement() -> None:
    store = TieredStore(host_bytes=make_chunk().size_bytes)
    store.put("a", make_chunk())
    held = store.get("a")
    assert held is not None

    store.replace("a", replace(make_chunk(), exact_after="other"))
    store.put("b", make_chunk())
    store.replace("a", make_chunk())

    assert "a" not in store
    assert held.exact_after is None
    assert torch.equal(held.layers[0][0], torch.ones(1, 1, 4, 2))


def test_storing_a_key_again_keeps_the_first_kv() -> None:
    store = TieredStore()
    first = make_chunk()
    store.put("a", first)
    store.put("a", make_chunk())
    assert store.get("a") is first


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(1, 9), st.booleans())))
@settings(max_examples=50, deadline=None)
def test_the_books_add_up_after_anything(steps: list[tuple[str, int, bool]]) -> None:
    store = TieredStore(host_bytes=15 * make_chunk(1).size_bytes)
    for key, size, is_put in steps:
        if is_put:
            store.put(key, make_chunk(size))
        else:
            store.get(key)
        check_store(store)
    store.clear()
    check_store(store)
    assert len(store.memory) == 0


def test_the_version_changes_with_every_change_and_with_nothing_else() -> None:
    store = TieredStore(host_bytes=make_chunk().size_bytes)
    versions = [store.version]
    for change in (
        lambda: store.put("a", make_chunk()),
        lambda: store.replace("a", make_chunk()),
        lambda: store.put("b", make_chunk()),
        lambda: store.discard("b"),
    ):
        change()
        versions.append(store.version)
        store.get("a")
        assert store.put("c" * 3, make_chunk(9)) is False
        assert store.version == versions[-1]
    assert len(set(versions)) == 5


def test_a_store_without_room_is_refused() -> None:
    with pytest.raises(ChunkCacheError, match="capacity_bytes must be at least 1, got 0"):
        TieredStore(host_bytes=0)
