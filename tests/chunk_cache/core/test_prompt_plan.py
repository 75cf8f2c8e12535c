"""A plan for an engine with pages stops at the end of one."""

from dataclasses import replace

import pytest
import torch

from ragboost.chunk_cache.core.fill import fill_steps
from ragboost.chunk_cache.core.library import ChunkLibrary
from ragboost.chunk_cache.core.prompt_plan import (
    PromptPlan,
    align_plan,
    find_chunks,
    plan_digest,
    plan_prompt,
)
from ragboost.chunk_cache.model.adapter import ModelAdapter
from ragboost.chunk_cache.model.pace import at_once
from ragboost.chunk_cache.selection import MEASURED
from tests.chunk_cache.families import build_adapter, make_prompt
from tests.chunk_cache.prompts import exact_prefix, learn, make_library, make_request


@pytest.fixture(scope="module")
def adapter() -> ModelAdapter:
    return build_adapter("qwen3-qk-norm")


def make_plan(adapter: ModelAdapter, *, is_measured: bool = False, **options: object) -> PromptPlan:
    system, chunks, question = make_prompt()
    library = make_library(adapter)
    learn(library, adapter, system, chunks)
    if is_measured:
        measure(library, adapter, system, chunks, question)
    request, tokens = make_request(system, chunks, question, **options)
    keys = find_chunks(request, tokens, library)
    plan = plan_prompt(request, tokens, prefix_tokens=0, keys=keys, library=library)
    assert isinstance(plan, PromptPlan)
    return plan


def measure(
    library: ChunkLibrary,
    adapter: ModelAdapter,
    system: list[int],
    chunks: list[list[int]],
    question: list[int],
) -> None:
    """Measure each chunk behind the others, in a prompt that ends inside a page."""
    for number in range(len(chunks)):
        turned = [*chunks[number + 1 :], *chunks[: number + 1]]
        request, tokens = make_request(system, turned, question, measure=True)
        keys = find_chunks(request, tokens, library)
        plan = plan_prompt(request, tokens, prefix_tokens=0, keys=keys, library=library)
        assert isinstance(plan, PromptPlan)
        aligned = align_plan(plan, 16)
        assert isinstance(aligned, PromptPlan)
        assert aligned.stop < plan.stop
        filled = at_once(fill_steps(adapter, aligned, prefix=None, backend=None))
        assert filled.influence is not None
        library.measure(keys[len(chunks) - 1], filled.influence)
        stored = library.find(keys[len(chunks) - 1], turned[-1])
        assert stored is not None
        assert stored.influence is not None


@pytest.mark.parametrize("page_size", [1, 5, 7, 16])
@pytest.mark.parametrize("policy", ["epic", "a3", "gradual", "cachecraft"])
def test_an_aligned_plan_stops_at_a_page_and_its_tokens_add_up(
    adapter: ModelAdapter, page_size: int, policy: str
) -> None:
    whole = make_plan(adapter, is_measured=policy in MEASURED, policy=policy, ratio=0.25)
    plan = align_plan(whole, page_size)

    assert isinstance(plan, PromptPlan)
    assert plan.stop % page_size == 0
    filled = at_once(fill_steps(adapter, plan, prefix=None, backend=None))
    assert sum(filled.counts) == len(plan.tokens)
    assert filled.counts == plan.counts
    assert all(position < plan.stop for position in filled.selected)


def test_kv_of_an_aligned_plan_is_the_beginning_of_the_stored_kv(adapter: ModelAdapter) -> None:
    whole = make_plan(adapter)
    plan = align_plan(whole, 16)

    assert isinstance(plan, PromptPlan)
    (start, stop), kv = plan.request.chunks[-1], plan.stored[-1]
    assert kv is not None
    assert kv.tokens == tuple(plan.tokens[start:stop])
    last = whole.stored[-1]
    assert last is not None
    assert torch.equal(kv.layers[0][0], last.layers[0][0][:, :, : stop - start])


def test_a_plan_of_less_than_a_page_is_none(adapter: ModelAdapter) -> None:
    assert align_plan(make_plan(adapter), 4096) == "below_one_page"


@pytest.mark.parametrize("num_exact", [1, 2, 3])
def test_bought_chunks_are_computed_before_any_approximate_token(
    adapter: ModelAdapter, num_exact: int
) -> None:
    plan = make_plan(adapter, exact_chunks=num_exact)
    start = plan.request.reuse_start
    (first, stop), *_ = plan.request.chunks

    assert start is not None
    assert plan.approximate == start
    assert plan.exact == (True, False, False, False)  # it was stored where it stands
    assert all(kv is None for kv in plan.stored[1:num_exact])
    filled = at_once(fill_steps(adapter, plan, prefix=None, backend=None))
    assert filled.counts == plan.counts
    assert filled.counts.exact == stop - first
    assert filled.counts.computed == start - (stop - first) + len(plan.tokens) - plan.stop
    own = exact_prefix(adapter, plan.tokens[:start])
    for layer, (keys, values) in zip(filled.cache.layers, own.layers, strict=True):
        assert torch.allclose(layer.keys[:, :, :start], keys, atol=1e-5)
        assert torch.allclose(layer.values[:, :, :start], values, atol=1e-5)


def test_a_prompt_whose_chunks_are_all_bought_is_computed_by_the_engine(
    adapter: ModelAdapter,
) -> None:
    system, chunks, question = make_prompt()
    library = make_library(adapter)
    learn(library, adapter, system, chunks[1:])  # the first one would be exact where it stands
    request, tokens = make_request(system, chunks, question, exact_chunks=len(chunks))
    keys = find_chunks(request, tokens, library)

    assert plan_prompt(request, tokens, prefix_tokens=0, keys=keys, library=library) == "bought"


def test_approximate_kv_behind_other_purchases_is_another_one() -> None:
    request, tokens = make_request([1, 2], [[3] * 9, [4] * 9], [5])

    assert plan_digest(request, tokens) != plan_digest(replace(request, exact_chunks=1), tokens)
