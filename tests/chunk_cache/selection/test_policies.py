"""Each policy chooses what its paper says; the budget is kept; only reused tokens are chosen."""

from copy import deepcopy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.cache_utils import DynamicCache

from ragboost.chunk_cache.core.reuse import ChunkReuse
from ragboost.chunk_cache.model.adapter import ModelAdapter
from ragboost.chunk_cache.model.assemble import Assembly
from ragboost.chunk_cache.model.pace import at_once
from ragboost.chunk_cache.model.plan import ForwardPlan
from ragboost.chunk_cache.selection import DEFAULT_POLICY, MEASURED, POLICIES, make_policy
from ragboost.chunk_cache.selection.policy import budget, choose, rank
from ragboost.chunk_cache.selection.view import QUESTION_ROWS, SelectionView
from ragboost.chunk_cache.store.tiered import TieredStore
from ragboost.errors import ChunkCacheError
from tests.chunk_cache.families import build_adapter, build_model, flat, make_prompt

SYSTEM, CHUNKS, QUESTION = make_prompt()
TOKENS = [*SYSTEM, *flat(CHUNKS), *QUESTION]


@pytest.fixture(scope="module")
def reuse() -> ChunkReuse:
    model = build_model("llama")
    model.set_attn_implementation("eager")  # so that it can return its attention
    reuse = ChunkReuse(ModelAdapter(model), TieredStore())
    reuse.precompute(SYSTEM, CHUNKS)
    return reuse


def view_of(reuse: ChunkReuse, *, num_tokens: int = 10) -> SelectionView:
    assembly = reuse.assemble(SYSTEM, CHUNKS, QUESTION)
    return SelectionView(reuse.adapter, assembly, budget=num_tokens)


@pytest.fixture(scope="module")
def truth(reuse: ChunkReuse) -> tuple[DynamicCache, torch.Tensor]:
    """KV of an ordinary forward, and the question's attention per layer, (layers, tokens)."""
    plain = LlamaForCausalLM(deepcopy(reuse.adapter.model.config)).eval()
    plain.load_state_dict(reuse.adapter.model.state_dict())
    plain.set_attn_implementation("eager")
    with torch.no_grad():
        out = plain(torch.tensor([TOKENS]), past_key_values=DynamicCache(), output_attentions=True)
    mass = torch.stack([a[0, :, -len(QUESTION) :].sum((0, 1)) for a in out.attentions])
    return out.past_key_values, mass


def test_a3_scores_with_the_attention_of_layer_1_in_an_ordinary_forward(
    reuse: ChunkReuse, truth: tuple[DynamicCache, torch.Tensor]
) -> None:
    view = view_of(reuse)
    got = at_once(make_policy("a3").score(view))
    torch.testing.assert_close(got, truth[1][1, view.candidates], atol=1e-5, rtol=1e-5)


def test_cacheblend_scores_with_the_change_of_layer_1(
    reuse: ChunkReuse, truth: tuple[DynamicCache, torch.Tensor]
) -> None:
    view = view_of(reuse)
    old, new = view.assembly.cache.layers[1], truth[0].layers[1]
    keys = (new.keys - old.keys).square().sum((0, 1, 3))[view.candidates]
    values = (new.values - old.values).square().sum((0, 1, 3))[view.candidates]

    got = (
        at_once(make_policy("cacheblend").score(view)),
        at_once(make_policy("cacheblend-v").score(view)),
    )

    torch.testing.assert_close(got[0], keys, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(got[1], values, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("policy", ["cacheblend", "cacheblend-v", "a3", "gradual"])
def test_a_policy_that_computes_layer_1_of_all_tokens_leaves_no_stale_kv_in_it(
    reuse: ChunkReuse, truth: tuple[DynamicCache, torch.Tensor], policy: str
) -> None:
    result = reuse.prefill(SYSTEM, CHUNKS, QUESTION, policy=policy, ratio=0.05)
    assert result.counts.reused > 0
    for got, want in zip(result.cache.layers[:2], truth[0].layers, strict=False):
        torch.testing.assert_close(got.keys, want.keys, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(got.values, want.values, atol=1e-5, rtol=1e-5)


def test_question_attention_is_a_distribution_per_head_and_question_token(
    reuse: ChunkReuse,
) -> None:
    mass = at_once(view_of(reuse).question_attention())
    heads, rows = 4, len(QUESTION)
    torch.testing.assert_close(mass.sum(1), torch.full((3,), float(heads * rows)))


def test_of_a_long_question_the_rows_at_both_ends_are_read(reuse: ChunkReuse) -> None:
    question = [token % 50 + 3 for token in range(5 * QUESTION_ROWS)]
    assembly = reuse.assemble(SYSTEM, CHUNKS, question)
    mass = at_once(SelectionView(reuse.adapter, assembly, budget=10).question_attention())

    first, half = assembly.question, QUESTION_ROWS // 2
    assert mass.sum(1).tolist() == pytest.approx([4 * QUESTION_ROWS] * 3, rel=1e-4)
    assert mass[:, first + half : -half].eq(0).all(), "nobody sees what was not computed"
    assert mass[:, first : first + half].gt(0).all()


def test_in_layer_0_the_question_sees_what_it_sees_in_an_ordinary_forward(
    reuse: ChunkReuse, truth: tuple[DynamicCache, torch.Tensor]
) -> None:
    mass = at_once(view_of(reuse).question_attention())
    torch.testing.assert_close(mass[0], truth[1][0], atol=1e-4, rtol=1e-4)
    assert (mass[2] - truth[1][2]).abs().max() > 0.01, "deeper, reuse makes a difference"


def test_missing_chunks_are_not_looked_at() -> None:
    reuse = ChunkReuse(build_adapter(), TieredStore())
    reuse.precompute(SYSTEM, [CHUNKS[0], CHUNKS[1], CHUNKS[3]])
    view = view_of(reuse)
    start, stop = view.assembly.chunks[2]
    assert at_once(view.question_attention())[:, start:stop].eq(0).all()
    assert view.candidates.tolist() == [*range(26, 46), *range(66, 86)]


def test_epic_takes_the_heads_of_all_chunks_evenly(reuse: ChunkReuse) -> None:
    result = reuse.prefill(SYSTEM, CHUNKS, QUESTION, policy="epic", ratio=0.1)
    assert result.selected == (26, 27, 46, 47, 66, 67)


def test_anchored_takes_the_heads_of_chunks_and_what_the_question_attends_to(
    reuse: ChunkReuse,
) -> None:
    attention = at_once(make_policy("mean-layers").score(view_of(reuse)))
    read = (attention.topk(6).indices + 26).tolist()
    heads = [26, 27, 46, 47, 66, 67]

    chosen = reuse.prefill(SYSTEM, CHUNKS, QUESTION, policy="anchored", ratio=0.2).selected

    assert len(chosen) == 12
    assert set(chosen) >= {26, 46, 66, *read[:3]}
    assert len(set(chosen) - {*heads, *range(28, 30), *range(48, 50), *range(68, 70)}) >= 3


@pytest.mark.parametrize("policy", sorted(MEASURED))
def test_a_policy_without_the_measurements_that_it_needs_is_refused(policy: str) -> None:
    reuse = ChunkReuse(build_adapter(), TieredStore())
    reuse.measure(SYSTEM, CHUNKS[1], neighbours=[CHUNKS[0]])
    reuse.precompute(SYSTEM, CHUNKS[:3])
    named = f"the policy {policy} needs .* chunk 2 was stored without it"
    with pytest.raises(ChunkCacheError, match=named):
        reuse.prefill(SYSTEM, CHUNKS, QUESTION, policy=policy, ratio=0.3)
    exact = reuse.prefill(SYSTEM, [CHUNKS[0]], QUESTION, policy=policy, ratio=0.3)
    assert exact.counts.reused == 0, "an exact chunk needs none"


def test_rank_goes_from_0_to_1_and_is_shared_by_equal_values() -> None:
    assert rank(torch.tensor([5.0, -1.0, 7.0])).tolist() == [0.5, 0.0, 1.0]
    assert rank(torch.tensor([3.0])).tolist() == [0.0]
    assert rank(torch.tensor([0.0, 2.0, 0.0, 0.0, 1.0])).tolist() == [0.25, 1.0, 0.25, 0.25, 0.75]


@given(
    scores=st.lists(st.integers(0, 5), min_size=60, max_size=60),
    count=st.integers(0, 60),
    granularity=st.sampled_from([1, 3, 8, 16]),
)
@settings(max_examples=60, deadline=None)
def test_the_budget_is_kept_to_half_a_block(
    scores: list[int], count: int, granularity: int
) -> None:
    assembly = Assembly(
        TOKENS,
        None,  # type: ignore[arg-type]  # only positions matter here
        torch.tensor([2] * 26 + [1] * 60 + [0] * 7, dtype=torch.int8),
        [(6, 26), (26, 46), (46, 66), (66, 86)],
        86,
        torch.zeros(93),
    )

    chosen = choose(
        assembly, torch.tensor(scores), num_tokens=count, granularity=granularity
    ).tolist()

    assert chosen == sorted(set(chosen))
    assert set(chosen) <= set(range(26, 86))
    assert abs(len(chosen) - count) <= granularity // 2
    blocks = {((p - 26) // 20, (p - 26) % 20 // granularity) for p in chosen}
    whole = [p for p in range(26, 86) if ((p - 26) // 20, (p - 26) % 20 // granularity) in blocks]
    assert chosen == whole


def test_ties_go_to_the_earlier_token(reuse: ChunkReuse) -> None:
    assembly = reuse.assemble(SYSTEM, CHUNKS, QUESTION)
    assert choose(assembly, torch.zeros(60), num_tokens=3).tolist() == [26, 27, 28]


def test_budget_counts_reused_tokens_only() -> None:
    assert [budget(ratio, 60) for ratio in (0.0, 0.15, 1.0)] == [0, 9, 60]


def test_the_registry_holds_the_default_and_names_what_it_knows() -> None:
    assert DEFAULT_POLICY in POLICIES
    with pytest.raises(ChunkCacheError, match=r"'best'; known are full, reuse"):
        make_policy("best")


def small_reuse(*, num_layers: int) -> ChunkReuse:
    config = LlamaConfig(
        vocab_size=96,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=num_layers,
        num_attention_heads=4,
        pad_token_id=0,
    )
    torch.manual_seed(0)
    reuse = ChunkReuse(ModelAdapter(LlamaForCausalLM(config)), TieredStore())
    reuse.precompute(SYSTEM, CHUNKS)
    return reuse


def test_a_model_of_one_layer_has_no_layer_to_check() -> None:
    with pytest.raises(ChunkCacheError, match="has 1 layers; this policy needs layer 1"):
        small_reuse(num_layers=1).prefill(SYSTEM, CHUNKS, QUESTION, policy="a3")


def test_gradual_does_without_its_second_look_where_there_is_no_third_layer() -> None:
    result = small_reuse(num_layers=2).prefill(SYSTEM, CHUNKS, QUESTION, policy="gradual")
    assert len(result.selected) == 9


def test_a_deeper_look_sees_only_the_tokens_it_is_paid_for_and_makes_their_kv_exact(
    reuse: ChunkReuse,
) -> None:
    view = view_of(reuse)
    at_once(view.fresh_layer())
    before = [(layer.keys.clone(), layer.values.clone()) for layer in view.assembly.cache.layers]
    chosen = view.candidates[::7]

    deeper = at_once(view.deeper_layer(chosen))

    assert torch.nonzero(deeper.value_change[: view.assembly.question]).flatten().tolist() == (
        chosen.tolist()
    )
    exact = reuse.adapter.empty_cache(len(view.assembly.tokens))
    every = torch.arange(len(view.assembly.tokens))
    reuse.adapter.forward(view.assembly.tokens, exact, plan=ForwardPlan(every))
    others = view.candidates[~torch.isin(view.candidates, chosen)]
    for number, (layer, (keys, values)) in enumerate(
        zip(view.assembly.cache.layers, before, strict=True)
    ):
        assert torch.equal(layer.keys[:, :, others], keys[:, :, others])
        assert torch.equal(layer.values[:, :, others], values[:, :, others])
        wanted = exact.layers[2].keys if number == 2 else keys
        torch.testing.assert_close(
            layer.keys[:, :, chosen], wanted[:, :, chosen], atol=1e-4, rtol=1e-3
        )
