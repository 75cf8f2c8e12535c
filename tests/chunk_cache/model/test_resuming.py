"""A pass that begins with the hidden states of an earlier one gives what a whole pass gives."""

import pytest
import torch

from ragboost.chunk_cache.core.fill import recompute
from ragboost.chunk_cache.core.reuse import ChunkReuse
from ragboost.chunk_cache.model.adapter import ModelAdapter
from ragboost.chunk_cache.model.attention import make_backend
from ragboost.chunk_cache.model.pace import at_once
from ragboost.chunk_cache.model.plan import ForwardPlan
from ragboost.chunk_cache.store.tiered import TieredStore
from tests.chunk_cache.families import FAMILIES, build_adapter, build_model, flat, make_prompt

LOOKING = ["a3", "cacheblend", "hybrid", "gradual"]
"""Policies that compute layers before they choose."""


@pytest.mark.parametrize("family", FAMILIES)
def test_a_pass_may_begin_at_any_layer(family: str) -> None:
    adapter = build_adapter(family)
    assert adapter.can_resume
    tokens = [(7 * i + 5) % 90 + 3 for i in range(24)]
    other = [(token + 11) % 90 for token in tokens]
    rows = torch.tensor([4, 5, 9, 10, 11, 15, 20, 21, 22, 23])
    ids, backend = [tokens[i] for i in rows], make_backend("tiled")
    for layer in range(1, adapter.num_layers):
        cache, reference = adapter.empty_cache(24), adapter.empty_cache(24)
        for each in (cache, reference):
            adapter.forward(other, each, plan=ForwardPlan(torch.arange(24)))

        whole = ForwardPlan(rows, backend=backend, keep=layer)
        want = adapter.forward(ids, reference, plan=whole)
        for number in range(layer):  # such a pass does not write the layers before
            cache.layers[number].keys.copy_(reference.layers[number].keys)
            cache.layers[number].values.copy_(reference.layers[number].values)
        got = adapter.forward(
            ids, cache, plan=ForwardPlan(rows, backend=backend, begin=whole.hidden)
        )

        torch.testing.assert_close(got, want, atol=2e-6, rtol=1e-5)
        for mine, theirs in zip(cache.layers, reference.layers, strict=True):
            torch.testing.assert_close(mine.keys, theirs.keys, atol=2e-6, rtol=1e-5)
            torch.testing.assert_close(mine.values, theirs.values, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("policy", LOOKING)
@pytest.mark.parametrize("family", ["llama", "gemma3-local-theta", "gpt-neox-partial"])
def test_the_result_is_that_of_a_plain_pass_over_kv_that_is_exact_where_the_policy_looked(
    family: str, policy: str
) -> None:
    reuse = ChunkReuse(build_adapter(family), TieredStore())
    system, chunks, question = make_prompt()
    reuse.precompute(system, [*chunks[:2], chunks[3]])  # the third is missing

    got = reuse.prefill(system, chunks, question, policy=policy, ratio=0.3)

    ordinary = reuse.prefill(system, chunks, question, policy="full")
    assembly = reuse.assemble(system, chunks, question)
    for mine, exact in zip(assembly.cache.layers[:2], ordinary.cache.layers, strict=False):
        mine.keys.copy_(exact.keys)
        mine.values.copy_(exact.values)
    # `gradual` looks at some tokens in the third layer, too, and keeps their exact KV.
    third, exact = got.cache.layers[2], ordinary.cache.layers[2]
    is_exact = torch.isclose(third.keys, exact.keys, atol=1e-5).all(3).all(1)[0]
    assert is_exact.sum() >= len(got.selected)
    assembly.cache.layers[2].keys[:, :, is_exact] = exact.keys[:, :, is_exact]
    assembly.cache.layers[2].values[:, :, is_exact] = exact.values[:, :, is_exact]
    rows = assembly.rows_to_compute(torch.tensor(got.selected))
    want = at_once(recompute(reuse.adapter, assembly, rows, backend=reuse.backend))
    assert want is not None
    torch.testing.assert_close(got.logits, want, atol=2e-5, rtol=1e-5)
    for mine, other in zip(got.cache.layers, assembly.cache.layers, strict=True):
        torch.testing.assert_close(mine.keys, other.keys, atol=2e-5, rtol=1e-4)
        torch.testing.assert_close(mine.values, other.values, atol=2e-5, rtol=1e-4)


def test_the_first_layer_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    reuse = ChunkReuse(build_adapter(), TieredStore())
    system, chunks, question = make_prompt()
    reuse.precompute(system, chunks)
    rows = []
    first = reuse.adapter.model.model.layers[0]
    first.register_forward_pre_hook(lambda _layer, args: rows.append(args[0].shape[1]))

    reuse.prefill(system, chunks, question, policy="gradual", ratio=0.2)

    # All that are not exact, the question over what is reused, a deeper look, the final pass.
    assert rows == [60 + 7, 7, 1, 1]


def test_a_model_that_cannot_resume_computes_the_first_layer_again() -> None:
    system, chunks, question = make_prompt()
    results = []
    for can_resume in (True, False):
        reuse = ChunkReuse(build_adapter(), TieredStore())
        reuse.adapter.can_resume = can_resume
        reuse.precompute(system, chunks)
        results.append(reuse.prefill(system, chunks, question, policy="gradual", ratio=0.2))
    assert results[0].selected == results[1].selected
    torch.testing.assert_close(results[0].logits, results[1].logits, atol=2e-5, rtol=1e-5)


def test_a_model_whose_layers_are_given_more_than_hidden_states_cannot_resume() -> None:
    model = build_model("llama")
    memory: list[torch.Tensor] = []

    def remember(_layer: torch.nn.Module, _args: object, output: torch.Tensor) -> None:
        memory[:] = [output]

    def recall(_layer: torch.nn.Module, _args: object, output: torch.Tensor) -> torch.Tensor:
        return output + memory[0].mean(1, keepdim=True)

    model.model.layers[0].register_forward_hook(remember)
    model.model.layers[2].register_forward_hook(recall)

    adapter = ModelAdapter(model)

    assert not adapter.can_resume
    system, chunks, question = make_prompt()
    reuse = ChunkReuse(adapter, TieredStore())
    reuse.precompute(system, chunks)
    assert len(reuse.prefill(system, chunks, question).selected) == round(
        0.15 * len(flat(chunks[1:]))
    )


def test_an_observer_sees_every_layer_of_all_rows() -> None:
    reuse = ChunkReuse(build_adapter(), TieredStore())
    system, chunks, question = make_prompt()
    reuse.precompute(system, chunks)
    seen = []
    reuse.prefill(
        system,
        chunks,
        question,
        policy="gradual",
        ratio=0.2,
        observe=lambda layer, inputs: seen.append((layer, len(inputs.positions))),
    )
    assert seen == [(0, 12 + 7), (1, 12 + 7), (2, 12 + 7)]
