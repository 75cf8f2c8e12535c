"""Requests leave versions of their chunks behind; later ones take the best and fix what changed."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from ragboost.chunk_cache.core.reuse import ChunkReuse
from ragboost.chunk_cache.model.adapter import ModelAdapter
from ragboost.chunk_cache.selection import make_policy
from ragboost.chunk_cache.store.influence import chunk_name
from ragboost.chunk_cache.store.tiered import TieredStore
from research.craft.overhead import fix_overhead, num_to_fix
from research.craft.reuse import CraftPrefill, CraftReuse
from research.craft.variants import Variants
from tests.chunk_cache.families import build_adapter, flat, make_prompt
from tests.chunk_cache.reference import ordinary
from tests.kv_integrity import check_store

SYSTEM, CHUNKS, QUESTION = make_prompt()
A, B, C, D = CHUNKS


@pytest.fixture(scope="module")
def adapter() -> ModelAdapter:
    return build_adapter("llama")


@pytest.fixture
def craft(adapter: ModelAdapter) -> CraftReuse:
    return CraftReuse(ChunkReuse(adapter, TieredStore()), early_stop=False)


def kinds(result: CraftPrefill) -> str:
    return "".join(
        "m" if chunk.choice is None else "e" if chunk.is_exact else "h"
        for chunk in result.plan.chunks
    )


def test_the_first_request_computes_everything_and_leaves_its_chunks_behind(
    craft: CraftReuse,
) -> None:
    result = craft.prefill(SYSTEM, [A, B, C], QUESTION)
    tokens = [*SYSTEM, *flat([A, B, C]), *QUESTION]
    want = ordinary(craft.reuse.adapter.model, tokens)
    torch.testing.assert_close(result.prefill.logits, want, atol=1e-5, rtol=1e-5)
    assert kinds(result) == "mmm"
    assert (result.num_new, len(craft.variants)) == (3, 3)
    (variant,) = craft.variants.of(chunk_name(C))
    assert variant.influence.context == (chunk_name(A), chunk_name(B))
    assert variant.influence.a > 0


def test_the_same_context_again_is_exact_and_costs_the_question_only(craft: CraftReuse) -> None:
    first = craft.prefill(SYSTEM, [A, B, C], QUESTION)
    again = craft.prefill(SYSTEM, [A, B, C], [1, 2, 3])
    longer = craft.prefill(SYSTEM, [A, B, C, D], QUESTION)

    assert kinds(again) == "eee"
    assert again.plan.num_recomputed == 0
    assert (again.prefill.counts.exact, again.prefill.counts.computed) == (66, 3)
    assert again.prefill.num_publishable == 69
    assert kinds(longer) == "eeem"
    tokens = [*SYSTEM, *flat(CHUNKS), *QUESTION]
    want = ordinary(craft.reuse.adapter.model, tokens)
    torch.testing.assert_close(longer.prefill.logits, want, atol=1e-5, rtol=1e-5)
    assert first.num_new == 3
    assert (again.num_new, longer.num_new) == (0, 1)


def test_another_context_recomputes_as_many_tokens_as_the_formula_says(craft: CraftReuse) -> None:
    craft.prefill(SYSTEM, [A, B, C], QUESTION)
    result = craft.prefill(SYSTEM, [B, D, C], QUESTION)

    assert kinds(result) == "hmh"
    (b,), (c,) = (craft.variants.of(chunk_name(chunk)) for chunk in (B, C))
    for number, variant, prefix in ((0, b, []), (2, c, [B, D])):
        planned = result.plan.chunks[number]
        overlap = variant.influence.overlap([chunk_name(chunk) for chunk in prefix])
        overhead = fix_overhead(variant.influence.impact(), overlap)
        assert planned.num_computed == num_to_fix(overhead, 20)
        start = planned.start
        chosen = {p - start for p in result.prefill.selected if start <= p < planned.stop}
        assert chosen == set(variant.influence.order[: planned.num_computed])
    assert 0 < result.plan.num_recomputed < 40
    assert result.prefill.counts.recomputed == result.plan.num_recomputed
    assert result.prefill.num_publishable == len(SYSTEM)
    assert result.num_new == 1  # D, after B


def test_what_was_computed_over_approximate_kv_is_never_taken_as_exact(craft: CraftReuse) -> None:
    craft.prefill(SYSTEM, [A, B, C], QUESTION)
    craft.prefill(SYSTEM, [B, D, C], QUESTION)
    again = craft.prefill(SYSTEM, [B, D, C], QUESTION)
    assert kinds(again) == "hhh"  # D's KV stands on B's, which was that of another context
    assert again.plan.chunks[1].num_computed == 0


def test_a_chunk_that_must_be_fixed_throughout_becomes_a_new_version(craft: CraftReuse) -> None:
    craft.prefill(SYSTEM, [A, B, C], QUESTION)
    craft.alpha = 1e6
    result = craft.prefill(SYSTEM, [D, C], QUESTION)
    tokens = [*SYSTEM, *D, *C, *QUESTION]
    want = ordinary(craft.reuse.adapter.model, tokens)
    torch.testing.assert_close(result.prefill.logits, want, atol=1e-5, rtol=1e-5)
    assert kinds(result) == "mh"
    assert [len(craft.variants.of(chunk_name(chunk))) for chunk in (C, D)] == [2, 1]
    assert kinds(craft.prefill(SYSTEM, [D, C], QUESTION)) == "ee"


def test_planning_uses_nothing_up(craft: CraftReuse) -> None:
    craft.prefill(SYSTEM, [A, B, C], QUESTION)
    before = [v.reuse_frequency for v in craft.variants.of(chunk_name(B))]
    plan = craft.plan(SYSTEM, [B, D], QUESTION)
    unlearned = craft.prefill(SYSTEM, [B, D], QUESTION, learn=False)
    assert plan == unlearned.plan
    assert unlearned.num_new == 0
    assert [v.reuse_frequency for v in craft.variants.of(chunk_name(B))] == before


def test_a_plan_can_be_read(craft: CraftReuse) -> None:
    craft.prefill(SYSTEM, [A, B, C], QUESTION)
    plan = craft.plan(SYSTEM, [A, C, D], QUESTION)
    lines = str(plan).splitlines()
    assert len(lines) == 5
    assert lines[1].split()[:3] == [chunk_name(A), "20", "exact"]
    assert lines[2].split()[:3] == [chunk_name(C), "20", "hit"]
    assert lines[3].split() == [chunk_name(D), "20", "miss", "-", "-", "-", "20"]
    again = plan.num_recomputed
    assert lines[4] == (f"2 hits, 1 misses; {again} tokens recomputed, 27 computed")
    assert plan.recompute_ratio == again / 40


def test_a_version_whose_kv_left_the_store_is_a_miss(craft: CraftReuse) -> None:
    craft.prefill(SYSTEM, [A, B], QUESTION)
    craft.reuse.store.clear()
    result = craft.prefill(SYSTEM, [A, B], QUESTION)
    assert kinds(result) == "mm"
    assert (result.num_new, len(craft.variants)) == (2, 2)


def test_dropped_versions_take_their_kv_with_them(adapter: ModelAdapter) -> None:
    store = TieredStore()
    reuse = ChunkReuse(adapter, store)
    variants = Variants(capacity=2, on_evict=store.discard)
    craft = CraftReuse(reuse, variants=variants, early_stop=False)
    for order in ([A, B], [C, D], [B, A]):
        craft.prefill(SYSTEM, order, QUESTION)
    assert len(variants) == 2
    assert len(store.memory) == 3  # the system prompt, and two versions
    check_store(store)


def test_stopping_early_saves_rows_and_never_publishes_what_was_left_as_it_was() -> None:
    adapter = build_adapter("llama", num_hidden_layers=8)
    craft = CraftReuse(ChunkReuse(adapter, TieredStore()), literal=True)
    patient = CraftReuse(craft.reuse, variants=craft.variants, literal=True, early_stop=False)
    for order in ([A, B, C, D], [D, C, B, A]):
        craft.prefill(SYSTEM, order, QUESTION)
    stopped = [
        (
            craft.prefill(SYSTEM, order, QUESTION, learn=False),
            patient.prefill(SYSTEM, order, QUESTION, learn=False),
        )
        for order in ([B, D, A, C], [C, A, D, B], [B, A, D, C], [D, A, C, B])
    ]
    early = [(some, whole) for some, whole in stopped if some.stopped_after is not None]

    assert early
    for some, whole in early:
        assert some.plan == whole.plan
        assert some.focused is not None
        assert some.stopped_after is not None
        assert 3 <= some.stopped_after < 8
        out = [
            chunk
            for n, chunk in enumerate(some.plan.chunks)
            if n not in some.focused and chunk.choice is not None
        ]
        assert some.num_saved == sum(c.num_computed for c in out) * (8 - some.stopped_after)
        assert some.prefill.num_publishable <= out[0].start
        for index, (got, want) in enumerate(
            zip(some.prefill.cache.layers, whole.prefill.cache.layers, strict=True)
        ):
            same = torch.equal(got.keys, want.keys)
            assert same == (index < some.stopped_after)


def test_requests_may_run_at_a_time(craft: CraftReuse) -> None:
    craft.prefill(SYSTEM, CHUNKS, QUESTION)
    orders = [[A, C], [B, D, A], [D, C, B, A], [C]] * 3

    def run(order: list[list[int]]) -> int:
        return craft.prefill(SYSTEM, order, QUESTION).prefill.num_tokens

    with ThreadPoolExecutor(4) as pool:
        sizes = list(pool.map(run, orders))

    assert sizes == [len(SYSTEM) + len(flat(order)) + len(QUESTION) for order in orders]
    craft.variants.check_integrity()


def test_the_policy_by_ratio_is_a_plan_with_the_alpha_that_fits(craft: CraftReuse) -> None:
    for before in ([D, C, B, A], [C, D, A, B]):
        craft.prefill(SYSTEM, before, QUESTION)
    for alpha in (0.3, 1.0, 2.0, 4.0):
        craft.alpha = alpha
        plan, stored = craft.plan_with_kv(SYSTEM, [A, C, B, D], QUESTION)
        fixed = [position for chunk in plan.chunks for position in chunk.fixed]
        result = craft.reuse.prefill(
            SYSTEM,
            [A, C, B, D],
            QUESTION,
            policy=make_policy("cachecraft"),
            ratio=plan.recompute_ratio,
            stored=stored,
        )
        assert list(result.selected) == fixed


def test_a_version_that_saw_no_other_chunk_costs_nothing_unless_distrusted(
    craft: CraftReuse,
) -> None:
    craft.prefill(SYSTEM, [A, B], QUESTION)
    trusting = craft.plan(SYSTEM, [C, A], QUESTION)
    craft.cautious = True
    alone = craft.plan(SYSTEM, [C, A], QUESTION)
    craft.prefill(SYSTEM, [B, A], QUESTION)  # whole, so there is a version with a context now
    informed = craft.plan(SYSTEM, [C, A], QUESTION)
    first = craft.plan(SYSTEM, [A, C], QUESTION)

    assert trusting.chunks[1].num_computed == 0
    assert alone.chunks[1].num_computed == 20
    assert [len(v.influence.context) for v in craft.variants.of(chunk_name(A))] == [0, 1]
    assert 0 < informed.chunks[1].num_computed < 20
    assert first.chunks[0].num_computed == 0  # it needs no context where it has none
