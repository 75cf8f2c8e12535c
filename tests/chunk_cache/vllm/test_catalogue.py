"""Workers in other processes report what they stored, and the scheduler's list stays true to it."""

from collections import Counter
from dataclasses import replace

import torch

from ragboost.chunk_cache.core.request import TokenOrigins
from ragboost.chunk_cache.core.settings import EngineChunkSettings
from ragboost.chunk_cache.store.chunk import ChunkKV
from ragboost.chunk_cache.vllm.catalogue import RankCatalogue
from ragboost.chunk_cache.vllm.data import (
    CapturedChunk,
    ListedChunk,
    RankHello,
    RankReport,
)

TOKENS = 16
KV_BYTES = 2 * 4 * TOKENS * 8  # keys and values of one layer, one head, float32
SIZE = 2
HELLO = RankHello(None, num_layers=1, regime="r", weights="w")


def make_catalogue(*, chunks: int = 4, remote: str = "") -> RankCatalogue:
    settings = EngineChunkSettings(host_bytes=chunks * KV_BYTES, remote=remote)
    return RankCatalogue(HELLO, size=SIZE, block_size=16, settings=settings)


def make_chunk(catalogue: RankCatalogue, number: int, *, base: int = 40) -> ListedChunk:
    tokens = tuple(range(number * TOKENS, (number + 1) * TOKENS))
    layer = torch.zeros(1, 1, TOKENS, 8)
    kv = ChunkKV(tokens, base, ((layer, layer),), "r", 100)
    return ListedChunk.of(catalogue.library.key(tokens), kv)


def captured(*chunks: ListedChunk, is_first: bool = False) -> RankReport:
    """Return the report of one rank."""
    return RankReport(Counter({CapturedChunk(chunk, is_first): 1 for chunk in chunks}))


def take(catalogue: RankCatalogue, *reports: RankReport) -> None:
    merged = reports[0]
    for report in reports[1:]:
        merged = merged.merged(report)
    catalogue.take(merged, is_unfinished=lambda request_id: request_id == "a")


def listed(catalogue: RankCatalogue, chunk: ListedChunk) -> ChunkKV | None:
    return catalogue.library.find(chunk.key, chunk.tokens)


def test_a_listed_chunk_has_no_kv_and_its_size() -> None:
    chunk = make_chunk(make_catalogue(), 0)

    assert not chunk.layers
    assert chunk.size_bytes == KV_BYTES


def test_only_what_all_ranks_stored_is_listed() -> None:
    catalogue = make_catalogue()
    both, one = make_chunk(catalogue, 0), make_chunk(catalogue, 1)
    take(catalogue, captured(both, one), captured(both))

    assert listed(catalogue, both) == both
    assert listed(catalogue, one) is None
    assert catalogue.take_dropped() == {one.key: False}
    assert catalogue.take_dropped() == {}


def test_evicted_chunks_are_removed_by_the_ranks() -> None:
    catalogue = make_catalogue(chunks=2)
    chunks = [make_chunk(catalogue, number) for number in range(3)]
    for chunk in chunks:
        take(catalogue, captured(chunk), captured(chunk))

    assert [listed(catalogue, chunk) is not None for chunk in chunks] == [False, True, True]
    assert catalogue.take_dropped() == {chunks[0].key: False}


def test_a_chunk_that_is_stored_again_before_its_removal_stays() -> None:
    catalogue = make_catalogue(chunks=1)
    first, second = make_chunk(catalogue, 0), make_chunk(catalogue, 1)
    for chunk in (first, second, first):
        take(catalogue, captured(chunk), captured(chunk))

    assert listed(catalogue, first) == first
    assert catalogue.take_dropped() == {second.key: False}


def test_the_list_follows_a_version_that_saw_fewer_documents() -> None:
    catalogue = make_catalogue()
    late = make_chunk(catalogue, 0, base=200)
    early = replace(late, base=40)
    take(catalogue, captured(late), captured(late))
    take(catalogue, captured(early, is_first=True), captured(early, is_first=True))
    found = listed(catalogue, late)

    assert found is not None
    assert found.base == 40


def test_what_a_rank_has_lost_is_removed_by_all() -> None:
    catalogue = make_catalogue()
    chunk = make_chunk(catalogue, 0)
    take(catalogue, captured(chunk), captured(chunk))
    take(catalogue, RankReport(lost={chunk.key}), RankReport())

    assert listed(catalogue, chunk) is None
    assert catalogue.take_dropped() == {chunk.key: False}


def test_new_weights_empty_the_list_and_change_the_keys() -> None:
    catalogue = make_catalogue()
    chunk, library = make_chunk(catalogue, 0), catalogue.library
    take(catalogue, captured(chunk), captured(chunk))
    new = RankReport(generation=1, weights="new")
    take(catalogue, new, new)

    assert catalogue.library is not library
    assert catalogue.library.key(chunk.tokens) != chunk.key
    assert listed(catalogue, chunk) is None


def test_a_filling_that_failed_on_one_rank_has_failed() -> None:
    catalogue = make_catalogue()
    plan = TokenOrigins(1, 2, 3, 4)
    catalogue.outcomes["a"] = plan
    take(catalogue, RankReport(outcomes={"a": plan, "ended": plan}), RankReport(failed={"a"}))

    assert catalogue.failed_requests == {"a"}
    assert not catalogue.outcomes


def loaded(chunk: ListedChunk, *, rank: int = 0) -> RankReport:
    return RankReport(loaded={(rank, chunk.key): chunk})


def test_a_chunk_that_all_ranks_have_loaded_is_listed() -> None:
    catalogue = make_catalogue(remote="redis://h:1")
    chunk, store = make_chunk(catalogue, 0), catalogue.library.store
    store.prefetch({chunk.key: TOKENS})
    assert catalogue.take_wanted() == {chunk.key: TOKENS}
    store.prefetch({chunk.key: TOKENS})
    assert catalogue.take_wanted() == {}, "they are on it"
    for _ in range(2):
        take(catalogue, loaded(chunk))
        assert store.is_loading([chunk.key])
        assert listed(catalogue, chunk) is None
    take(catalogue, loaded(chunk, rank=1))
    assert not store.is_loading([chunk.key])
    assert listed(catalogue, chunk) == chunk
    assert catalogue.take_dropped() == {}


def test_a_chunk_that_a_rank_could_not_load_is_dropped_by_the_others() -> None:
    catalogue = make_catalogue(remote="redis://h:1")
    lacking, differing = make_chunk(catalogue, 0), make_chunk(catalogue, 1)
    store = catalogue.library.store
    store.prefetch({lacking.key: TOKENS, differing.key: TOKENS})
    assert len(catalogue.take_wanted()) == 2
    take(catalogue, loaded(lacking), RankReport(absent={lacking.key}))
    # One rank's was not written, or another engine's was: where they are they would stay different.
    take(catalogue, loaded(differing), loaded(replace(differing, base=7), rank=1))
    assert not store.is_loading([lacking.key, differing.key])
    assert catalogue.take_dropped() == {lacking.key: False, differing.key: True}
    take(catalogue, loaded(lacking))
    assert catalogue.take_dropped() == {lacking.key: False}, "too late"
    catalogue.take_wanted()
    store.prefetch({lacking.key: TOKENS})
    assert not store.is_loading([lacking.key]), "nobody waits again for what was just missed"
    assert catalogue.take_wanted() == {}


def test_a_chunk_that_is_late_on_one_rank_is_there_for_the_next_request() -> None:
    catalogue = make_catalogue(remote="redis://h:1")
    chunk, store = make_chunk(catalogue, 0), catalogue.library.store
    store.prefetch({chunk.key: TOKENS})
    assert len(catalogue.take_wanted()) == 1
    take(catalogue, loaded(chunk), RankReport(late={chunk.key}))
    assert not store.is_loading([chunk.key]), "the request computes it"
    assert listed(catalogue, chunk) is None
    take(catalogue, loaded(chunk, rank=1))
    assert listed(catalogue, chunk) == chunk
    assert catalogue.take_dropped() == {}


def test_a_chunk_that_was_loaded_stays_until_its_request_uses_it() -> None:
    catalogue = make_catalogue(chunks=2, remote="redis://h:1")
    chunks = [make_chunk(catalogue, number) for number in range(4)]
    take(catalogue, captured(*chunks[:2]), captured(*chunks[:2]))
    assert all(listed(catalogue, chunk) for chunk in chunks[:2])
    for chunk in chunks[2:]:  # one after the other
        catalogue.library.store.prefetch({chunk.key: TOKENS})
        catalogue.take_wanted()
        take(catalogue, loaded(chunk), loaded(chunk, rank=1))
    assert all(listed(catalogue, chunk) for chunk in chunks[2:])


def test_ranks_without_a_disk_or_a_remote_store_load_nothing() -> None:
    catalogue = make_catalogue()
    catalogue.library.store.prefetch({"a": 3})
    assert catalogue.take_wanted() == {}
    assert not catalogue.library.store.is_loading(["a"])


def test_chunks_asked_for_between_two_steps_are_bounded() -> None:
    catalogue = make_catalogue(remote="redis://h:1")
    for number in range(1 << 15):
        catalogue.library.store.prefetch({str(number): TOKENS})
    assert len(catalogue.take_wanted()) == 1 << 14


def test_after_a_reset_keys_are_shared_once_the_ranks_have_looked_at_their_weights() -> None:
    """Weights may have been changed in place before it, in one engine earlier than in another."""
    one, other, same = (make_catalogue(remote="redis://h:1") for _ in range(3))
    assert make_chunk(one, 0).key == make_chunk(other, 0).key
    one.forget_chunks()
    other.forget_chunks()
    assert make_chunk(one, 0).key != make_chunk(other, 0).key
    other.forget_chunks()  # the ranks know of the first
    for catalogue in (one, other):
        looked = RankReport(generation=1, weights=HELLO.weights, num_resets=1)
        take(catalogue, looked, looked)
    assert make_chunk(one, 0).key == make_chunk(same, 0).key
    assert make_chunk(other, 0).key != make_chunk(same, 0).key
    looked = RankReport(generation=2, weights="new", num_resets=2)
    take(other, looked, looked)
    new = RankReport(generation=1, weights="new")
    take(same, new, new)
    assert make_chunk(other, 0).key == make_chunk(same, 0).key
