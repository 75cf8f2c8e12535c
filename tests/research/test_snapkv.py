"""After the first token each head keeps what the question looks at; positions go on counting."""

import pytest
import torch
from transformers.cache_utils import DynamicCache

from ragboost.chunk_cache.core.reuse import ChunkReuse, Prefill
from ragboost.chunk_cache.store.tiered import TieredStore
from ragboost.errors import ChunkCacheError
from research.snapkv import shortened_prefill
from tests.chunk_cache.families import build_adapter, flat, make_prompt

SYSTEM, CHUNKS, QUESTION = make_prompt()
TOTAL = len(SYSTEM) + len(flat(CHUNKS)) + len(QUESTION)


def prefill(keep_tokens: int | None, *, family: str = "llama", ratio: float = 1.0) -> Prefill:
    reuse = ChunkReuse(build_adapter(family), TieredStore())
    reuse.precompute(SYSTEM, CHUNKS)
    return shortened_prefill(reuse, SYSTEM, CHUNKS, QUESTION, ratio=ratio, keep_tokens=keep_tokens)


def decode(result: Prefill, *, family: str, steps: int = 6) -> list[int]:
    model = build_adapter(family).model
    ids = torch.tensor([[*SYSTEM, *flat(CHUNKS), *QUESTION, int(result.logits.argmax())]])
    out = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        past_key_values=result.cache,
        max_new_tokens=steps,
        min_new_tokens=steps,
        do_sample=False,
        pad_token_id=0,
    )
    tokens: list[int] = out[0, ids.shape[1] - 1 :].tolist()
    return tokens


@pytest.mark.parametrize("family", ["llama", "gemma3-local-theta", "gpt-oss-sinks"])
def test_with_room_for_all_generation_is_the_same(family: str) -> None:
    whole, kept = prefill(None, family=family), prefill(TOTAL, family=family)
    assert isinstance(kept.cache, DynamicCache)
    assert decode(kept, family=family) == decode(whole, family=family)


def test_the_cache_shrinks_and_its_length_does_not() -> None:
    result = prefill(40)
    for layer in result.cache.layers:
        assert layer.keys.shape[2] == layer.values.shape[2] == 40
        assert layer.get_seq_length() == TOTAL
    assert len(decode(result, family="llama")) == 7
    assert result.cache.get_seq_length() == TOTAL + 6


def test_layers_with_a_window_are_kept_whole() -> None:
    lengths = [
        layer.keys.shape[2] for layer in prefill(40, family="gemma3-local-theta").cache.layers
    ]
    assert lengths == [TOTAL] * 3  # of three layers, none is global

    lengths = [layer.keys.shape[2] for layer in prefill(40, family="gpt-oss-sinks").cache.layers]
    assert lengths == [TOTAL, 40, TOTAL]


def test_system_prompt_and_question_are_kept_in_every_head() -> None:
    whole, kept = prefill(None), prefill(40)
    for full, short in zip(whole.cache.layers, kept.cache.layers, strict=True):
        first, last = len(SYSTEM), len(QUESTION)
        torch.testing.assert_close(short.keys[:, :, :first], full.keys[:, :, :first])
        torch.testing.assert_close(short.keys[:, :, -last:], full.keys[:, :, -last:])
        assert (short.keys[:, 0] - short.keys[:, 1]).abs().max() > 0


def test_decoding_over_a_shrunken_cache_equals_attention_to_the_kept_tokens_alone() -> None:
    """One step by hand: a head sees its kept keys, at their old positions, and itself."""
    result = prefill(40, ratio=0.3)
    model = build_adapter().model
    token = torch.tensor([[7]])
    short = [(layer.keys.clone(), layer.values.clone()) for layer in result.cache.layers]
    got = model(token, past_key_values=result.cache, use_cache=True).logits[0, -1]

    plain = DynamicCache()
    for index, (keys, values) in enumerate(short):
        plain.update(keys, values, index)
    want = model(
        token, position_ids=torch.tensor([[TOTAL]]), past_key_values=plain, use_cache=True
    ).logits[0, -1]

    torch.testing.assert_close(got, want)


def test_the_capacity_must_hold_system_prompt_and_question() -> None:
    with pytest.raises(ChunkCacheError, match=r"capacity must be at least 13, .* got 12"):
        prefill(12)
    assert prefill(13).cache.layers[0].keys.shape[2] == 13
