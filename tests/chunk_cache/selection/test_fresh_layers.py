"""Layers that a policy computes before it chooses replace the reused KV with exact KV."""

import pytest
import torch

from ragboost.chunk_cache.core.fill import recompute
from ragboost.chunk_cache.core.reuse import ChunkReuse
from ragboost.chunk_cache.model.pace import at_once
from ragboost.chunk_cache.store.tiered import TieredStore
from tests.chunk_cache.families import build_adapter, make_prompt

LOOKING = ["a3", "cacheblend", "gradual"]
"""Policies that compute layers before they choose."""


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
