"""A computation in pieces gives what it gives at once, and can be ended between two pieces."""

import pytest
import torch

from ragboost.chunk_cache.core.reuse import ChunkReuse
from ragboost.chunk_cache.model.adapter import ModelAdapter
from ragboost.chunk_cache.model.pace import Pace
from ragboost.chunk_cache.selection import MEASURED, POLICIES, make_policy
from ragboost.chunk_cache.selection.view import SelectionView
from ragboost.chunk_cache.store.lru import ChunkStore
from tests.chunk_cache.families import build_adapter, make_prompt


class Counting(Pace):
    """Small pieces; raises at the end of its patience."""

    def __init__(self, rows: int, *, patience: int = 10_000) -> None:
        self.rows = rows
        self.num_rests = 0
        self.patience = patience

    def rest(self) -> None:
        self.num_rests += 1
        if self.num_rests > self.patience:
            raise TimeoutError


@pytest.fixture(scope="module", params=["qwen3-qk-norm", "gemma3-local-theta"])
def adapter(request: pytest.FixtureRequest) -> ModelAdapter:
    return build_adapter(request.param)


def test_rows_come_in_order_and_in_pieces_of_the_right_length() -> None:
    rows = torch.arange(10)
    assert [piece.tolist() for piece in Counting(4).pieces(rows)] == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
        [8, 9],
    ]
    assert [len(piece) for piece in Counting(2).pieces(rows, share=1 / 3)] == [6, 4]
    assert [len(piece) for piece in Pace().pieces(rows)] == [10]
    assert list(Counting(4).pieces(rows[:0])) == []


@pytest.mark.parametrize("policy", sorted(POLICIES.keys() - MEASURED))
def test_a_policy_in_small_pieces_chooses_what_it_chooses_at_once(
    adapter: ModelAdapter, policy: str
) -> None:
    system, chunks, question = make_prompt()
    reuse = ChunkReuse(adapter, ChunkStore())
    reuse.precompute(system, [chunks[0], *chunks[2:]])
    scores = []
    for rows in (10_000, 3):
        assembly = reuse.assemble(system, chunks, question)
        view = SelectionView(adapter, assembly, budget=12, pace=Counting(rows))
        scores.append(make_policy(policy).score(view))
    torch.testing.assert_close(scores[0], scores[1], atol=1e-4, rtol=1e-4)


def test_stored_chunks_are_the_same_in_small_pieces_and_nothing_is_stored_of_an_ended_one(
    adapter: ModelAdapter,
) -> None:
    system, chunks, _ = make_prompt()
    whole, pieces = ChunkReuse(adapter, ChunkStore()), ChunkReuse(adapter, ChunkStore())
    whole.precompute(system, chunks)
    with pytest.raises(TimeoutError):
        pieces.chunks.precompute(system, chunks, pace=Counting(3, patience=4))
    assert len(pieces.store) == 1, "the system prompt; its first chunk was not done"
    pieces.chunks.precompute(system, chunks, pace=Counting(3))
    for chunk in chunks:
        got, want = pieces.chunks.find(system, chunk), whole.chunks.find(system, chunk)
        assert got is not None
        assert want is not None
        for new, old in zip(got.layers, want.layers, strict=True):
            torch.testing.assert_close(new, old, atol=1e-5, rtol=1e-5)
