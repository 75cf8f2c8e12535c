"""Measurements inside an engine equal those of the offline stage."""

from dataclasses import replace

import pytest

from ragboost.chunk_cache.core.fill import fill_steps
from ragboost.chunk_cache.core.prompt_plan import PromptPlan, find_chunks, plan_digest, plan_prompt
from ragboost.chunk_cache.core.reuse import ChunkReuse
from ragboost.chunk_cache.model.adapter import ModelAdapter
from ragboost.chunk_cache.model.pace import at_once
from ragboost.chunk_cache.store.influence import chunk_name
from ragboost.chunk_cache.store.keys import behind_key
from ragboost.chunk_cache.store.tiered import TieredStore
from tests.chunk_cache.families import build_adapter, make_prompt
from tests.chunk_cache.prompts import learn, make_library, make_request


@pytest.fixture(scope="module")
def adapter() -> ModelAdapter:
    return build_adapter("qwen3-qk-norm")


def test_a_chunk_is_measured_behind_its_neighbours_as_offline(adapter: ModelAdapter) -> None:
    system, chunks, question = make_prompt()
    library = make_library(adapter)
    learn(library, adapter, system, chunks)
    *neighbours, chunk = chunks
    alone = ChunkReuse(adapter, TieredStore(), backend=None)
    wanted = alone.prime(system, chunk, neighbours=neighbours)

    request, tokens = make_request(system, chunks, question, measure=True)
    keys = find_chunks(request, tokens, library)
    plan = plan_prompt(request, tokens, prefix_tokens=0, keys=keys, library=library)
    assert isinstance(plan, PromptPlan)
    filled = at_once(fill_steps(adapter, plan, prefix=None, backend=None))
    assert filled.influence is not None
    before = library.store.get(keys[len(neighbours)])
    library.measure(keys[len(neighbours)], filled.influence)
    stored = library.store.get(keys[len(neighbours)])

    assert wanted.influence is not None
    assert before is not None
    assert stored is not None
    assert stored.influence is not None
    assert stored.influence.order == wanted.influence.order
    assert stored.influence.a == pytest.approx(wanted.influence.a, rel=1e-3)
    assert stored.influence.b == pytest.approx(wanted.influence.b, rel=1e-3)
    assert stored.influence.context == ()  # the stored KV is still that of the chunk alone
    assert stored.layers is before.layers
    assert filled.counts.recomputed == len(chunk)


def test_kv_behind_neighbours_is_kept_and_preferred(
    adapter: ModelAdapter,
) -> None:
    system, chunks, question = make_prompt()
    library = make_library(adapter)
    learn(library, adapter, system, chunks)
    *neighbours, chunk = chunks
    reuse = ChunkReuse(adapter, TieredStore(), backend=None)
    primed = reuse.prime(system, chunk, neighbours=neighbours)
    assert primed.influence is not None

    key = library.key(chunk)
    library.measure(key, primed.influence, behind=primed)

    preferred, plain = library.find(key, chunk), library.find(key, chunk, "first")
    assert preferred is not None
    assert plain is not None
    assert preferred.layers is primed.layers
    names = [chunk_name(tokens) for tokens in neighbours]
    assert preferred.influence is not None
    assert preferred.influence.overlap(names) == pytest.approx(1.0)  # beta' (eq. 8)
    assert plain.base == len(system)  # directly behind the prompt's beginning it is exact
    assert plain.influence is not None
    assert plain.influence.overlap(names) == 0.0
    # Neighbours of a chunk that is measured are those computed alone (eq. 10).
    for is_measuring, kv in ((False, preferred), (True, plain)):
        request, tokens = make_request([*system, 7], [chunks[0], chunk], question)
        request = replace(request, measure=is_measuring)
        keys = find_chunks(request, tokens, library)
        plan = plan_prompt(request, tokens, prefix_tokens=0, keys=keys, library=library)
        assert isinstance(plan, PromptPlan)
        assert plan.stored[-1] is not None
        assert plan.stored[-1].layers is kv.layers
    # Prepared anew behind others it replaces the old, and alone is loaded ahead.
    other = replace(primed, base=primed.base + 1)
    library.measure(key, primed.influence, behind=other)
    found = library.find(key, chunk)
    assert found is not None
    assert found.base == other.base
    assert library.keys_to_load(key) == [behind_key(key)]


def test_kv_that_saw_fewer_chunks_keeps_the_measurements_of_what_it_replaces(
    adapter: ModelAdapter,
) -> None:
    system, chunks, question = make_prompt()
    library = make_library(adapter)
    learn(library, adapter, system + chunks[1], chunks[:1])
    learn(library, adapter, system, chunks[1:2])
    request, tokens = make_request(system, chunks[1::-1], question, measure=True)
    keys = find_chunks(request, tokens, library)
    plan = plan_prompt(request, tokens, prefix_tokens=0, keys=keys, library=library)
    assert plan == "not_measurable"  # its KV is exact here
    request, tokens = make_request([*system, 7], chunks[1::-1], question, measure=True)
    plan = plan_prompt(request, tokens, prefix_tokens=0, keys=keys, library=library)
    assert isinstance(plan, PromptPlan)
    filled = at_once(fill_steps(adapter, plan, prefix=None, backend=None))
    assert filled.influence is not None
    library.measure(keys[1], filled.influence)

    learn(library, adapter, system, chunks[:1])

    stored = library.store.get(keys[1])
    assert stored is not None
    assert stored.base == len(system)
    assert stored.influence is not None
    assert stored.influence.order is filled.influence.order


def test_chunks_without_measurements_are_computed_if_the_policy_needs_them(
    adapter: ModelAdapter,
) -> None:
    system, chunks, question = make_prompt()
    library = make_library(adapter)
    learn(library, adapter, system, chunks)
    request, tokens = make_request(system, chunks[::-1], question, policy="cachecraft", ratio=0.2)
    keys = find_chunks(request, tokens, library)
    last = len(chunks) - 1

    exact_only = plan_prompt(request, tokens, prefix_tokens=0, keys={1: keys[1]}, library=library)
    whole = plan_prompt(request, tokens, prefix_tokens=0, keys=keys, library=library)

    assert exact_only == "not_measured"
    assert whole in ("mostly_missing", "not_measured") or (
        isinstance(whole, PromptPlan) and whole.stored[last] is None
    )


def test_a_request_that_measures_never_meets_its_own_earlier_blocks(adapter: ModelAdapter) -> None:
    system, chunks, question = make_prompt()
    request, tokens = make_request(system, chunks, question, measure=True)

    assert plan_digest(request, tokens) != plan_digest(request, tokens)


def test_the_first_chunk_of_a_prompt_cannot_be_measured(adapter: ModelAdapter) -> None:
    system, chunks, question = make_prompt()
    library = make_library(adapter)
    learn(library, adapter, system, chunks)
    request, tokens = make_request([*system, 7], chunks[:1], question, measure=True)
    keys = find_chunks(request, tokens, library)

    assert (
        plan_prompt(request, tokens, prefix_tokens=0, keys=keys, library=library)
        == "not_measurable"
    )
