"""Chunks taken from a prompt: exact behind the same chain, found by themselves elsewhere, kept
once."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from ragboost.chunk_cache.core.reuse import ChunkReuse, Prefill
from ragboost.chunk_cache.store.tiered import TieredStore
from tests.chunk_cache.families import build_adapter, flat, make_prompt
from tests.chunk_cache.prompts import num_stored, stored_kv, take
from tests.chunk_cache.reference import ordinary

SYSTEM, CHUNKS, QUESTION = make_prompt()
A, B, C, D = CHUNKS


@pytest.fixture
def reuse() -> ChunkReuse:
    return ChunkReuse(build_adapter("llama"), TieredStore())


def ask(reuse: ChunkReuse, chunks: Sequence[Sequence[int]], **options: Any) -> Prefill:
    result = reuse.prefill(SYSTEM, chunks, QUESTION, **options)
    take(reuse, result, SYSTEM, [*chunks], QUESTION)
    return result


def test_the_papers_three_queries(reuse: ChunkReuse) -> None:
    """Queries 1 and 2 leave A, and C and B; query 3 is A, B: A is exact, B is found by itself."""
    first = ask(reuse, [A])
    second = ask(reuse, [C, B])
    third = ask(reuse, [A, B], ratio=0.0)
    again = ask(reuse, [C, B])

    assert (first.counts.exact, first.counts.computed) == (0, 33)
    assert (second.counts.exact, second.counts.computed) == (6, 47)
    assert (third.counts.exact, third.counts.reused, third.counts.computed) == (26, 20, 7)
    assert (again.counts.exact, again.counts.reused, again.counts.computed) == (46, 0, 7)
    assert num_stored(reuse) == 4  # the system prompt and each chunk


def test_the_exact_chain_gives_what_an_ordinary_forward_gives(reuse: ChunkReuse) -> None:
    ask(reuse, [C, B, D])
    result = ask(reuse, [C, B, D])
    tokens = [*SYSTEM, *flat([C, B, D]), *QUESTION]
    want = ordinary(reuse.adapter.model, tokens)
    torch.testing.assert_close(result.logits, want, atol=1e-5, rtol=1e-5)
    assert (result.num_publishable, result.counts.exact) == (result.num_tokens, 66)


def test_a_chunk_of_approximate_ancestry_is_never_exact(reuse: ChunkReuse) -> None:
    ask(reuse, [C, B])
    ask(reuse, [B, D], ratio=0.0)  # D is computed over B of another context
    again = ask(reuse, [B, D], ratio=0.0)
    assert again.counts.reused == 40


def test_kv_behind_others_and_kv_computed_alone_are_both_kept(reuse: ChunkReuse) -> None:
    ask(reuse, [C, B])
    taken = stored_kv(reuse, B)
    plain = reuse.plain(SYSTEM, B)
    assert taken is not None
    assert taken.base == 26
    assert stored_kv(reuse, B) is taken
    assert reuse.library.find(reuse.library.key(B), B, "first") is plain


def test_the_first_chunk_of_a_prompt_is_plain(reuse: ChunkReuse) -> None:
    ask(reuse, [A, A, B])
    kv = reuse.store.get(reuse.library.key(A))
    want = ChunkReuse(reuse.adapter, TieredStore()).plain(SYSTEM, A)
    assert kv is not None
    assert (kv.base, kv.exact_after) == (want.base, want.exact_after)
    for mine, other in zip(kv.layers, want.layers, strict=True):
        torch.testing.assert_close(mine, other, atol=1e-5, rtol=1e-5)


def test_chunks_of_dynamic_rope_are_taken_with_the_speeds_of_their_prompt() -> None:
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10_000.0}
    adapter = build_adapter("llama", rope_parameters=rope, max_position_embeddings=64)
    reuse = ChunkReuse(adapter, TieredStore())
    ask(reuse, [A, B, C])
    short = reuse.prefill(SYSTEM, [A], QUESTION, policy="full")
    tokens = [*SYSTEM, *A, *QUESTION]
    want = ordinary(adapter.model, tokens)
    torch.testing.assert_close(short.logits, want, atol=1e-5, rtol=1e-5)
    assert short.counts.exact == len(SYSTEM), "the long prompt rotates at other speeds"


@pytest.mark.parametrize("kind", ["tokens", "layers", "shape", "dtype"])
def test_kv_that_is_not_of_this_chunk_and_model_is_removed_and_computed(
    reuse: ChunkReuse, kind: str
) -> None:
    key, kv = reuse.library.key(B), reuse.plain(SYSTEM, B)
    wrong = {
        "tokens": replace(kv, tokens=tuple(C)),
        "layers": replace(kv, layers=kv.layers[:1]),
        "shape": replace(kv, layers=tuple((k[:, :1], v) for k, v in kv.layers)),
        "dtype": replace(kv, layers=tuple((k.double(), v.double()) for k, v in kv.layers)),
    }[kind]
    reuse.store.discard(key)
    reuse.store.put(key, wrong)
    result = reuse.prefill(SYSTEM, [A, B], QUESTION, ratio=0.0)
    assert (result.counts.reused, result.counts.computed) == (0, 40 + 7)
    assert reuse.store.get(key) is None
