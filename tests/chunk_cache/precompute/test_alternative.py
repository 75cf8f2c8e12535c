"""The alternative path: exact behind the same chain, found by itself elsewhere, kept once."""

import pytest
import torch

from ragboost.chunk_cache.kv.store import ChunkStore
from ragboost.chunk_cache.precompute.alternative import AlternativePath
from ragboost.chunk_cache.reuse import ChunkReuse
from tests.chunk_cache.families import build_adapter, flat, make_prompt
from tests.chunk_cache.reference import ordinary

SYSTEM, CHUNKS, QUESTION = make_prompt()
A, B, C, D = CHUNKS


@pytest.fixture
def path() -> AlternativePath:
    return AlternativePath(ChunkReuse(build_adapter("llama"), ChunkStore()))


def test_the_papers_three_queries(path: AlternativePath) -> None:
    """Queries 1 and 2 leave A, and C and B; query 3 is A, B: A is exact, B is found by itself."""
    first = path.prefill(SYSTEM, [A], QUESTION)
    second = path.prefill(SYSTEM, [C, B], QUESTION)
    third = path.prefill(SYSTEM, [A, B], QUESTION, ratio=0.0)
    again = path.prefill(SYSTEM, [C, B], [5])

    assert (first.num_exact, first.num_computed) == (6, 27)
    assert (second.num_exact, second.num_computed) == (6, 47)
    assert (third.num_exact, third.num_approximate, third.num_computed) == (26, 20, 7)
    assert (again.num_exact, again.num_approximate, again.num_computed) == (46, 0, 1)
    assert len(path.reuse.store) == 4  # the system prompt and one replica of each chunk


def test_the_exact_chain_gives_what_an_ordinary_forward_gives(path: AlternativePath) -> None:
    path.prefill(SYSTEM, [C, B, D], QUESTION)
    result = path.prefill(SYSTEM, [C, B, D], QUESTION)
    tokens = [*SYSTEM, *flat([C, B, D]), *QUESTION]
    want = ordinary(path.reuse.adapter.model, tokens)
    torch.testing.assert_close(result.logits, want, atol=1e-5, rtol=1e-5)
    assert result.num_publishable == result.num_tokens


def test_a_replica_of_approximate_ancestry_is_never_exact(path: AlternativePath) -> None:
    path.prefill(SYSTEM, [C, B], QUESTION)
    path.prefill(SYSTEM, [B, D], QUESTION, ratio=0.0)  # D is computed over B of another context
    again = path.prefill(SYSTEM, [B, D], QUESTION, ratio=0.0)
    assert again.num_approximate == 40


def test_plain_kv_comes_before_a_replica(path: AlternativePath) -> None:
    path.prefill(SYSTEM, [C, B], QUESTION)
    path.reuse.precompute(SYSTEM, [B])
    found = path.find(SYSTEM, [B, []])
    assert found == [path.reuse.chunks.find(SYSTEM, B), None]
