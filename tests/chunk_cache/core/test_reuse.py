"""A request takes what is exact, then what is stored, and computes the rest; nothing else
changes."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from ragboost.chunk_cache.core.reuse import ChunkReuse, Prefill
from ragboost.chunk_cache.model.adapter import ModelAdapter
from ragboost.chunk_cache.model.plan import ForwardPlan
from ragboost.chunk_cache.selection import MEASURED, POLICIES
from ragboost.chunk_cache.store.chunk import ChunkKV
from ragboost.chunk_cache.store.keys import Identity
from ragboost.chunk_cache.store.tiered import TieredStore
from ragboost.errors import ChunkCacheError
from tests.chunk_cache.families import build_adapter, build_model, flat, make_prompt
from tests.chunk_cache.oracle import Oracle
from tests.chunk_cache.prompts import num_stored, stored_kv
from tests.chunk_cache.reference import ordinary


@pytest.fixture(scope="module")
def adapter() -> ModelAdapter:
    return build_adapter("qwen3-qk-norm")


@pytest.fixture
def reuse(adapter: ModelAdapter) -> ChunkReuse:
    return ChunkReuse(adapter, TieredStore())


def exact_prefix(adapter: ModelAdapter, tokens: list[int]) -> ChunkKV:
    """KV as a prefix cache holds it."""
    cache = adapter.empty_cache(len(tokens))
    adapter.forward(tokens, cache, plan=ForwardPlan(torch.arange(len(tokens))))
    layers = tuple((layer.keys, layer.values) for layer in cache.layers)
    return ChunkKV(tuple(tokens), 0, layers, adapter.regime(len(tokens)), len(tokens))


def counts(result: Prefill) -> tuple[int, int, int, int]:
    return (
        result.counts.exact,
        result.counts.reused,
        result.counts.recomputed,
        result.counts.computed,
    )


@pytest.mark.parametrize("policy", POLICIES)
def test_the_counts_add_up_to_the_prompt_for_every_policy(reuse: ChunkReuse, policy: str) -> None:
    system, chunks, question = make_prompt()
    reuse.precompute(system, chunks[:3])
    if policy in MEASURED:
        for chunk in chunks[:3]:
            reuse.measure(system, chunk, neighbours=chunks[1:3])

    result = reuse.prefill(system, chunks, question, policy=policy, ratio=0.25)

    recomputed = {"full": 40, "reuse": 0}.get(policy, 10)
    assert counts(result) == (6 + 20, 40 - recomputed, recomputed, 20 + 7)
    assert result.num_tokens == len(system) + len(flat(chunks)) + len(question)
    assert set(result.selected) <= set(range(26, 66))
    assert result.cache.get_seq_length() == result.num_tokens


def test_without_stored_kv_everything_is_computed_and_exact(reuse: ChunkReuse) -> None:
    system, chunks, question = make_prompt()
    result = reuse.prefill(system, chunks, question)
    assert counts(result) == (0, 0, 0, 93)
    assert result.num_publishable == 93


def test_approximate_kv_is_never_publishable(reuse: ChunkReuse) -> None:
    system, chunks, question = make_prompt()
    reuse.precompute(system, [chunks[0], chunks[2]])

    some = reuse.prefill(system, chunks, question, ratio=0.5)
    whole = reuse.prefill(system, chunks, question, ratio=1.0)

    # System prompt and first chunk are exact, the second is computed over exact KV alone.
    assert some.num_publishable == 6 + 20 + 20
    assert whole.num_publishable == whole.num_tokens
    tokens = [*system, *flat(chunks), *question]
    want = exact_prefix(reuse.adapter, tokens)
    for layer, (keys, values) in zip(some.cache.layers, want.layers, strict=True):
        torch.testing.assert_close(layer.keys[:, :, :46], keys[:, :, :46], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(layer.values[:, :, :46], values[:, :, :46], atol=1e-5, rtol=1e-5)
        assert (layer.keys[:, :, 46:66] - keys[:, :, 46:66]).abs().max() >= 0


def test_a_chunk_is_found_after_any_system_prompt_and_exact_only_after_its_own(
    reuse: ChunkReuse,
) -> None:
    system, chunks, question = make_prompt()
    reuse.precompute(system, chunks)
    other = reuse.prefill([*system, 5], chunks, question)
    own = reuse.prefill(system, chunks, question)
    assert counts(other) == (0, 68, 12, 7 + 7)
    assert counts(own) == (6 + 20, 51, 9, 7)


def test_a_store_may_be_shared_by_models_whose_identity_differs(adapter: ModelAdapter) -> None:
    store = TieredStore()
    system, chunks, question = make_prompt()
    ChunkReuse(adapter, store, identity=Identity(model="one")).precompute(system, chunks)
    other = ChunkReuse(adapter, store, identity=Identity(model="two"))
    assert counts(other.prefill(system, chunks, question)) == (0, 0, 0, 93)


def test_weights_decide_the_fingerprint() -> None:
    first, second = build_adapter(), build_adapter()
    assert first.fingerprint() == second.fingerprint()
    with torch.no_grad():
        second.model.get_input_embeddings().weight[0, 0] += 1.0
    assert first.fingerprint() != second.fingerprint()


def test_precomputing_again_computes_nothing(reuse: ChunkReuse) -> None:
    system, chunks, _ = make_prompt()
    assert reuse.precompute(system, [*chunks, chunks[0], []]) == 4
    assert reuse.precompute(system, chunks) == 0
    assert num_stored(reuse) == 5


def test_no_system_prompt_and_no_chunks_are_fine(reuse: ChunkReuse) -> None:
    _, chunks, question = make_prompt()
    reuse.precompute([], chunks)
    alone = reuse.prefill([], chunks, question, ratio=1.0)
    bare = reuse.prefill([], [], question)
    assert counts(alone) == (20, 0, 60, 7)
    assert counts(bare) == (0, 0, 0, 7)
    torch.testing.assert_close(
        alone.logits, ordinary(reuse.adapter.model, [*flat(chunks), *question]), atol=1e-5, rtol=0
    )


def test_a_question_is_needed_and_a_ratio_is_between_0_and_1(reuse: ChunkReuse) -> None:
    system, chunks, question = make_prompt()
    with pytest.raises(ChunkCacheError, match="question must have at least one token"):
        reuse.prefill(system, chunks, [])
    with pytest.raises(ChunkCacheError, match=r"must be in \[0, 1\], got 1.5"):
        reuse.prefill(system, chunks, question, ratio=1.5)


@pytest.mark.parametrize("policy", ["gradual", "anchored", "a3"])
def test_stored_kv_is_never_changed_in_place(reuse: ChunkReuse, policy: str) -> None:
    system, chunks, question = make_prompt()
    reuse.precompute(system, chunks)
    stored = [stored_kv(reuse, tokens) for tokens in [*chunks, system]]
    tensors = [t for kv in stored if kv is not None for layer in kv.layers for t in layer]
    before = [(t.clone(), t._version) for t in tensors]

    for ratio in (0.0, 0.3, 1.0):
        result = reuse.prefill(system, chunks, question, policy=policy, ratio=ratio)
        reuse.adapter.model(torch.tensor([[3]]), past_key_values=result.cache, use_cache=True)

    assert len(tensors) == 5 * 2 * 3
    for tensor, (value, version) in zip(tensors, before, strict=True):
        assert torch.equal(tensor, value)
        assert tensor._version == version


def test_concurrent_requests_that_share_chunks_do_not_disturb_each_other(
    reuse: ChunkReuse,
) -> None:
    system, chunks, question = make_prompt()
    reuse.precompute(system, chunks)
    orders = [[0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2], [2, 2, 2, 1]] * 4

    def run(number: int) -> torch.Tensor:
        order = [chunks[i] for i in orders[number]]
        policy = ["gradual", "anchored", "fusionrag", "epic"][number // 4]
        return reuse.prefill(system, order, question, policy=policy, ratio=0.3).logits

    alone = [run(number) for number in range(16)]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(run, range(16)))

    for got, want in zip(together, alone, strict=True):
        assert torch.equal(got, want)


def test_measuring_the_attention_of_the_question_does_not_change_the_result(
    reuse: ChunkReuse,
) -> None:
    system, chunks, question = make_prompt()
    reuse.precompute(system, chunks)

    looked = reuse.prefill(system, chunks, question, policy="mean-layers", ratio=0.5)
    given = Oracle(looked.selected)  # the same rows without a look
    again = reuse.prefill(system, chunks, question, policy=given, ratio=0.5)

    torch.testing.assert_close(again.logits, looked.logits, atol=2e-6, rtol=1e-6)


def test_two_adapters_on_one_model_are_fine() -> None:
    model = build_model("llama")
    first, second = ModelAdapter(model), ModelAdapter(model)
    assert first.layouts == second.layouts
