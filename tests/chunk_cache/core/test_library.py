"""Chunks are found by content, each tenant's by itself."""

from copy import copy
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from ragboost.chunk_cache.core.library import ChunkLibrary
from ragboost.chunk_cache.core.prompt_plan import PromptPlan, find_chunks, plan_prompt
from ragboost.chunk_cache.core.request import EngineChunkRequest
from ragboost.chunk_cache.core.reuse import ChunkReuse
from ragboost.chunk_cache.core.reusing_request import ReusingRequest
from ragboost.chunk_cache.model.adapter import ModelAdapter
from ragboost.chunk_cache.store.chunk import ChunkKV
from ragboost.chunk_cache.store.disk import DiskTier
from ragboost.chunk_cache.store.influence import Influence
from ragboost.chunk_cache.store.keys import Identity, behind_key, keys_of
from ragboost.chunk_cache.store.tiered import TieredStore
from tests.chunk_cache.families import build_adapter, make_prompt
from tests.chunk_cache.prompts import (
    IDENTITY,
    exact_prefix,
    learn,
    make_library,
    make_request,
    take,
)
from tests.chunk_cache.store.chunks import make_chunk
from tests.eventually import eventually


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
    assert library.keys_to_load(chunk) == keys_of(chunk, "behind"), "it is not known which there is"
    for number in order:
        kv, is_first = ((behind, False), (first, True), (later, True))[number]
        key = library.slot(chunk, is_first=is_first)
        if library.lacks(key, alone.tokens, base=kv.base, is_exact=False, is_first=is_first):
            assert library.add(key, kv, is_first=is_first)

    bases = {}
    for is_first in (False, True):
        found = library.find(chunk, alone.tokens, "first" if is_first else "behind")
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


@pytest.mark.parametrize("is_first", [False, True])
def test_exact_kv_replaces_approximate_kv_once(adapter: ModelAdapter, is_first: bool) -> None:
    library = make_library(adapter)
    blend = replace(exact_prefix(adapter, [3, 4, 5, 6]), base=9, exact_after=None)
    exact = replace(blend, base=20, exact_after="digest")
    key = library.slot(library.key(blend.tokens), is_first=is_first)
    library.add(key, blend, is_first=is_first)

    def lacks(kv: ChunkKV) -> bool:
        is_exact = kv.exact_after is not None
        return library.lacks(key, kv.tokens, base=kv.base, is_exact=is_exact, is_first=is_first)

    assert not lacks(blend)
    assert lacks(exact)
    library.add(key, exact, is_first=is_first)
    assert library.store.get(key) is exact
    assert not lacks(exact)


def test_exact_kv_replaces_approximate_kv_of_earlier_engines_on_disk(
    adapter: ModelAdapter, tmp_path: Path
) -> None:
    alone = exact_prefix(adapter, [3, 4, 5, 6])
    exact = replace(alone, base=20, length=24, exact_after="digest")
    blend = replace(exact, exact_after=None)
    for kv in (blend, exact):  # the second engine has not loaded what the first has stored
        store = TieredStore(disk=DiskTier(tmp_path, capacity_bytes=1 << 24), waits=False)
        library = ChunkLibrary.of(adapter, store, identity=IDENTITY)
        key = behind_key(library.key(kv.tokens))
        is_exact = kv.exact_after is not None
        assert library.lacks(key, kv.tokens, base=20, is_exact=is_exact, is_first=False)
        library.add(key, kv, is_first=False)
        assert not library.lacks(key, kv.tokens, base=20, is_exact=is_exact, is_first=False)
        store.close()

    found = DiskTier(tmp_path, capacity_bytes=1 << 24).load(key)
    assert found is not None
    assert found.exact_after == "digest"


def test_kv_of_other_frequencies_is_not_found(adapter: ModelAdapter) -> None:
    library = make_library(adapter)
    kv = replace(exact_prefix(adapter, [3, 4, 5, 6]), regime="other")
    key = library.key(kv.tokens)
    library.add(key, kv, is_first=True)

    assert library.find(key, kv.tokens) is None


@pytest.mark.parametrize("has_first", [False, True])
def test_a_look_up_counts_once_however_many_kv_a_chunk_has(
    adapter: ModelAdapter, has_first: bool
) -> None:
    library = make_library(adapter)
    system, (chunk, missing, *_), question = make_prompt()
    kv = exact_prefix(adapter, chunk)
    key = library.key(chunk)
    library.add(behind_key(key), replace(kv, base=20), is_first=False)
    if has_first:
        library.add(key, replace(kv, base=9), is_first=True)
    request, tokens = make_request(system, [missing, chunk], question, exact_chunks=2)
    keys = find_chunks(request, tokens, library)
    assert plan_prompt(request, tokens, prefix_tokens=0, keys=keys, library=library) == "bought"
    assert (library.num_hits, library.misses) == (1, {"absent": 1})


def test_kv_computed_alone_comes_from_disk_where_only_that_is_reused(
    adapter: ModelAdapter, tmp_path: Path
) -> None:
    """What such a request computes must not depend on what an engine has in memory."""
    system, chunks, question = make_prompt()
    first = TieredStore(disk=DiskTier(tmp_path, capacity_bytes=1 << 24))
    library = ChunkLibrary.of(adapter, first, identity=IDENTITY)
    learn(library, adapter, system, chunks)
    for chunk in chunks:
        kv = first.get(library.key(chunk))
        assert kv is not None
        influence = Influence((), (), 1.0, 2.0, tuple(range(len(chunk))))
        behind = replace(kv, base=50, influence=influence)
        library.measure(library.key(chunk), influence, behind=behind)
    first.close()

    disk = DiskTier(tmp_path, capacity_bytes=1 << 24)
    library.store = store = TieredStore(disk=disk, waits=False)
    request, tokens = make_request(system, chunks, question, policy="epic", measure=True)
    entry = {"chunks": request.chunks, "policy": request.policy, "measure": request.measure}
    read = ReusingRequest.read(
        "a",
        entry,
        tokens,
        refusal=None,
        namespace=[],
        library=library,
        defaults=EngineChunkRequest(),
        measurable_tokens=1000,
    )
    eventually(lambda: len(store.memory) == len(chunks))
    plan = plan_prompt(read.options, tokens, prefix_tokens=0, keys=read.keys, library=library)
    assert isinstance(plan, PromptPlan)
    assert [None if kv is None else kv.base for kv in plan.stored] == [len(system)] * len(chunks)
    store.close()


def test_no_request_waits_for_a_second_kv_that_the_disk_does_not_have(tmp_path: Path) -> None:
    store = TieredStore(disk=DiskTier(tmp_path, capacity_bytes=1 << 24), waits=False)
    library = ChunkLibrary(store, identity=Identity(model="m"), regime="regime")
    chunk, both = list(range(12)), keys_of(library.key(list(range(12))))
    assert library.keys_to_load(both[0]) == both[::-1], "another engine may share the disk"
    store.put(both[0], make_chunk())
    assert library.keys_to_load(both[0]) == [both[0]]
    entry = {"chunks": [[0, 12], [12, 24]]}
    ReusingRequest.read(
        "a",
        entry,
        [*chunk, *chunk, 1],
        refusal=None,
        namespace=[],
        library=library,
        defaults=EngineChunkRequest(),
        measurable_tokens=None,
    )
    assert not store.is_loading(both)
    store.close()


def test_a_corpus_is_computed_alone_also_where_requests_left_it_behind_others(
    adapter: ModelAdapter,
) -> None:
    system, chunks, question = make_prompt()
    reuse = ChunkReuse(adapter, TieredStore(), identity=IDENTITY, backend=None)
    result = reuse.prefill(system, chunks, question)
    take(reuse, result, system, chunks, question)
    assert reuse.precompute(system, chunks) == len(chunks) - 1
