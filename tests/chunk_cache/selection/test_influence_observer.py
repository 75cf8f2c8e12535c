"""What is gathered block by block is what the dense attention matrix says."""

import math

import pytest
import torch
from transformers import AutoModelForCausalLM

from ragboost.chunk_cache.model.adapter import ModelAdapter
from ragboost.chunk_cache.model.attention.backend import AttentionInputs
from ragboost.chunk_cache.model.plan import ForwardPlan
from ragboost.chunk_cache.selection import influence_observer as gather_module
from ragboost.chunk_cache.selection.influence_observer import InfluenceObserver
from ragboost.chunk_cache.store.influence import chunk_name
from research.craft.overhead import fix_overhead, num_to_fix
from tests.chunk_cache.families import build_model

SYSTEM = [3, 4, 5]
CHUNKS = [list(range(10, 30)), [], list(range(30, 37)), [60], list(range(40, 59))]


def positions() -> list[tuple[int, int]]:
    borders, start = [], len(SYSTEM)
    for chunk in CHUNKS:
        borders.append((start, start + len(chunk)))
        start += len(chunk)
    return borders


def dense_attention(model: object, tokens: list[int]) -> torch.Tensor:
    """Of an ordinary forward, (layers, heads, tokens, tokens)."""
    plain = AutoModelForCausalLM.from_config(model.config, attn_implementation="eager").eval()  # type: ignore[attr-defined]
    plain.load_state_dict(model.state_dict())  # type: ignore[attr-defined]
    with torch.no_grad():
        out = plain(torch.tensor([tokens]), output_attentions=True)
    return torch.stack([layer[0] for layer in out.attentions])


@pytest.mark.parametrize("family", ["llama", "qwen3-qk-norm", "mistral-window"])
def test_gathered_attention_is_that_of_the_dense_matrix(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gather_module, "ROWS", 8)  # several blocks per chunk
    model = build_model(family)
    tokens = [*SYSTEM, *(token for chunk in CHUNKS for token in chunk), 7, 8]
    dense = dense_attention(model, tokens)
    adapter = ModelAdapter(model)
    borders = positions()
    gather = InfluenceObserver(tokens, borders, watched=[0, 1, 2, 3, 4])
    rows = torch.arange(len(tokens))
    adapter.forward(
        tokens, adapter.empty_cache(len(tokens)), plan=ForwardPlan(rows, observe=gather)
    )

    found = gather.influences()

    assert sorted(found) == [0, 2, 3, 4]  # an empty chunk has no attention
    for number, influence in found.items():
        start, stop = borders[number]
        block = dense.mean((0, 1))[start:stop]
        before = [i for i in range(number) if CHUNKS[i]]
        sums = [float(block[:, borders[i][0] : borders[i][1]].sum()) for i in before]
        within = block[:, start:stop].tril(-1).sum()
        assert influence.context == tuple(chunk_name(CHUNKS[i]) for i in before)
        assert influence.inter == pytest.approx(sums, rel=1e-4, abs=1e-6)
        size = stop - start
        want = sum(s / (size * len(CHUNKS[i])) for s, i in zip(sums, before, strict=True))
        assert influence.a == pytest.approx(want, rel=1e-4, abs=1e-8)
        assert influence.b == pytest.approx(float(within) / size**2, rel=1e-4, abs=1e-7)
        by_token = block[:, len(SYSTEM) : start].sum(1)
        got = by_token[list(influence.order)]
        assert sorted(influence.order) == list(range(size))
        assert bool((got[:-1] >= got[1:] - 1e-6).all())


def test_the_formulas_by_hand() -> None:
    """A system token, then chunks of two tokens. Row p of an even head gives 1 / (p + 1) to each of
    the tokens 0 to p. In the second layer one of two heads looks at the system prompt alone, which
    is no context: all is 3/4 of what even heads give.
    """
    even = torch.zeros(1, 2, 5, 4)
    key = torch.zeros(1, 2, 5, 4)
    key[:, :, 0] = 100.0
    at_system = even.clone()
    at_system[:, 1] = 100.0
    gather = InfluenceObserver([9, 1, 2, 3, 4], [(1, 3), (3, 5)], watched=[0, 1])

    for layer, query in enumerate((even, at_system)):
        gather(layer, AttentionInputs(query, key, key, torch.arange(5), scaling=1.0))
    first, second = gather.influences()[0], gather.influences()[1]

    assert (first.context, first.inter, first.a) == ((), (), 0.0)
    assert first.b == pytest.approx(0.75 * (1 / 3) / 4)  # token 2 looks at token 1
    # Eq. 3: tokens 3 and 4 give 2/4 and 2/5 to the first chunk; eq. 4: token 4 gives 1/5 to 3.
    assert second.context == (chunk_name([1, 2]),)
    assert second.inter == pytest.approx((0.75 * 0.9,))
    assert second.a == pytest.approx(0.75 * 0.9 / (2 * 2))  # eq. 9
    assert second.b == pytest.approx(0.75 * 0.2 / 2**2)  # eq. 10
    assert second.impact() == pytest.approx(0.9 / 1.1)  # CCI
    assert second.impact(literal=True) == pytest.approx(1 / (1 + math.exp(-4.5)))  # eq. 11
    assert second.order == (0, 1)  # eq. 14
    overhead = fix_overhead(second.impact(), second.overlap([]), alpha=0.5)
    assert overhead == pytest.approx(0.45 / 1.1)  # eq. 12
    assert num_to_fix(overhead, 2) == 1
    assert second.overlap([chunk_name([1, 2])]) == 1.0


def test_only_watched_chunks_need_their_rows_in_the_pass() -> None:
    adapter = ModelAdapter(build_model("llama"))
    tokens = [*SYSTEM, *(token for chunk in CHUNKS for token in chunk), 7]
    borders = positions()
    cache = adapter.empty_cache(len(tokens))
    every = torch.arange(len(tokens))
    whole = InfluenceObserver(tokens, borders, watched=[2, 4])
    adapter.forward(tokens, cache, plan=ForwardPlan(every, observe=whole))

    start, stop = borders[4]
    rows = torch.tensor([5, 9, *range(start, stop), stop])
    part = InfluenceObserver(tokens, borders, watched=[4])
    adapter.forward([tokens[i] for i in rows], cache, plan=ForwardPlan(rows, observe=part))

    assert part.influences()[4].inter == pytest.approx(whole.influences()[4].inter, rel=1e-4)
    assert part.influences()[4].b == pytest.approx(whole.influences()[4].b, rel=1e-4)


def test_the_first_chunk_has_no_context_and_no_impact() -> None:
    adapter = ModelAdapter(build_model("llama"))
    tokens = [*SYSTEM, *CHUNKS[0]]
    gather = InfluenceObserver(tokens, [(3, 23)], watched=[0])
    cache = adapter.empty_cache(len(tokens))
    adapter.forward(tokens, cache, plan=ForwardPlan(torch.arange(len(tokens)), observe=gather))
    influence = gather.influences()[0]
    assert (influence.context, influence.inter, influence.a) == ((), (), 0.0)
    assert influence.impact() == 0.0
    assert influence.order == tuple(range(20))
