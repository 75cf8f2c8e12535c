"""Dependency attention on real (tiny, random) models, against ordinary forwards."""

import pytest
import torch
from hypothesis import given, settings

from ragboost.chunk_cache.model.adapter import ModelAdapter
from ragboost.chunk_cache.model.rope import KeyRotation
from ragboost.graph.depcache import DepCache, DepKV
from ragboost.graph.layout import DepPrompt, LinearNode, Positions, lay_out
from tests.chunk_cache.families import build_adapter
from tests.chunk_cache.reference import ordinary
from tests.graph import cases
from tests.kv_integrity import check_tree

FAMILIES = (
    "llama",
    "llama-yarn",
    "mistral-window",
    "qwen3-qk-norm",
    "gemma2-softcap",
    "gpt-oss-sinks",
    "glm4-partial-interleaved",
)


@pytest.fixture(scope="module")
def adapter() -> ModelAdapter:
    return build_adapter()


def share(got: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((got - wanted).abs().max() / wanted.abs().max())


def largest_difference(one: DepKV, other: DepKV) -> float:
    return max(
        max(share(a.keys, b.keys), share(a.values, b.values))
        for a, b in zip(one.cache.layers, other.cache.layers, strict=True)
    )


def test_one_path_equals_ordinary_attention_bit_for_bit(adapter: ModelAdapter) -> None:
    graph = (tuple(range(20, 60)),)
    prompt = DepPrompt.of(cases.SYSTEM, graph, cases.TASK)

    got = DepCache(adapter, capacity_tokens=0).compute_depkv(prompt)

    wanted = ordinary(adapter.model, [*cases.SYSTEM, *graph[0], *cases.TASK])
    assert torch.equal(got.logits, wanted)


@pytest.mark.parametrize("positions", ["depth", "preorder"])
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_those_of_a_forward_under_the_mask(family: str, positions: Positions) -> None:
    adapter = build_adapter(family)
    layout = lay_out(cases.prompt(), positions=positions)
    mask = lay_out(cases.prompt()).dense_mask()

    got = DepCache(adapter, positions=positions).compute_depkv(cases.prompt())

    assert share(got.logits, cases.masked_logits(adapter.model, layout, mask)) < 2e-6


@given(cases.paths)
@settings(max_examples=15, deadline=None)
def test_the_kv_of_a_path_is_that_of_the_path_alone(graph: list[list[int]]) -> None:
    adapter = build_adapter()
    kv = DepCache(adapter).compute_depkv(DepPrompt.of(cases.SYSTEM, graph, cases.TASK))
    run = kv.layout.runs[-2]  # the last leaf
    slots = [s for a, b in (*run.sees, (run.start, run.stop)) for s in range(a, b)]
    line = [kv.layout.tokens[slot] for slot in slots]
    alone = DepCache(adapter).compute_depkv(DepPrompt((LinearNode("task", tuple(line)),)))

    for one, other in zip(kv.cache.layers, alone.cache.layers, strict=True):
        assert share(one.keys[:, :, slots], other.keys) < 1e-6
        assert share(one.values[:, :, slots], other.values) < 1e-6


@pytest.mark.parametrize("family", FAMILIES)
def test_a_reused_subgraph_equals_the_computed_one(family: str) -> None:
    adapter = build_adapter(family)
    reusing = DepCache(adapter)
    reusing.compute_depkv(DepPrompt.of(cases.SYSTEM, cases.GRAPH[2:5], (14, 15, 16)))
    moved = (cases.GRAPH[4], *cases.GRAPH[:4])

    got = reusing.compute_depkv(DepPrompt.of(cases.SYSTEM, moved, cases.TASK))

    computed = DepCache(adapter).compute_depkv(DepPrompt.of(cases.SYSTEM, moved, cases.TASK))
    assert got.num_reused > 10
    assert computed.num_reused == 0
    assert largest_difference(got, computed) < 1e-6
    assert share(got.logits, computed.logits) < 1e-6


def test_preorder_reuse_turns_keys_to_their_new_positions(adapter: ModelAdapter) -> None:
    first, second = cases.GRAPH[:3], cases.GRAPH[4:5]
    reusing = DepCache(adapter, positions="preorder")
    reusing.compute_depkv(DepPrompt.of(cases.SYSTEM, (*first, *second), cases.TASK))
    turned = DepPrompt.of(cases.SYSTEM, (*second, *first), cases.TASK)

    got = reusing.compute_depkv(turned)

    computed = DepCache(adapter, positions="preorder").compute_depkv(turned)
    assert got.num_reused == len(got.layout) - len(cases.TASK)
    # Distances inside each root's tree stay, but not those to the system text: no exact reuse.
    assert share(got.logits, computed.logits) < 0.2
    with pytest.MonkeyPatch.context() as patch:  # without the rotation: the paper's ablation
        patch.setattr(KeyRotation, "apply", lambda _rotation, keys, _layer: keys)
        wrong = reusing.compute_depkv(turned)
    assert share(wrong.logits, computed.logits) > share(got.logits, computed.logits)


def test_kv_after_eviction_and_refill_is_the_same(adapter: ModelAdapter) -> None:
    depcache = DepCache(adapter, capacity_tokens=24)
    before = depcache.compute_depkv(cases.prompt())
    for start in range(60, 90, 6):
        other = tuple((start + i, start + i + 1, start + i + 2) for i in range(5))
        depcache.compute_depkv(cases.prompt(graph=other))
        assert depcache.tree is not None
        check_tree(depcache.tree)
    assert depcache.tree is not None
    assert depcache.tree.num_evicted > 20

    after = depcache.compute_depkv(cases.prompt())
    again = depcache.compute_depkv(cases.prompt())

    assert largest_difference(after, before) < 1e-6
    assert largest_difference(again, before) < 1e-6
    assert again.num_reused > after.num_reused


def test_prompts_with_another_salt_or_system_text_share_nothing(adapter: ModelAdapter) -> None:
    depcache = DepCache(adapter)
    depcache.compute_depkv(cases.prompt(), salt="one")

    assert depcache.compute_depkv(cases.prompt(), salt="two").num_reused == 0
    other = DepPrompt.of((17, 18), cases.GRAPH, cases.TASK)
    assert depcache.compute_depkv(other, salt="one").num_reused == 0


def test_a_batch_computes_what_prompts_share_once(adapter: ModelAdapter) -> None:
    prompts = [
        DepPrompt.of(cases.SYSTEM, cases.GRAPH[:4], (12, 13)),
        DepPrompt.of(cases.SYSTEM, cases.GRAPH[2:], (14, 15)),
    ]
    depcache = DepCache(adapter)

    depcache.precompute(cases.SYSTEM, [*cases.GRAPH[:4], *cases.GRAPH[2:]])

    for prompt in prompts:
        kv = depcache.compute_depkv(prompt)
        assert kv.num_reused == kv.layout.task
        alone = DepCache(adapter).compute_depkv(prompt)
        assert share(kv.logits, alone.logits) < 1e-6


def test_generation_continues_the_prompt(adapter: ModelAdapter) -> None:
    depcache = DepCache(adapter)
    kv = depcache.compute_depkv(cases.prompt())

    answer = depcache.generate_with_depkv(kv, max_tokens=5)

    longer = cases.prompt()
    for count in range(5):
        task = (*cases.TASK, *answer[:count])
        longer = DepPrompt.of(cases.SYSTEM, cases.GRAPH, task)
        logits = DepCache(adapter).compute_depkv(longer).logits
        assert int(logits.argmax()) == answer[count]
    assert depcache.generate_with_depkv(kv, max_tokens=5) == answer
    assert depcache.generate_with_depkv(kv, max_tokens=5, stop_ids=frozenset(answer[:1])) == []
