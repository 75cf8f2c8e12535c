"""A computation in pieces gives what it gives at once."""

import pytest
import torch

from ragboost.chunk_cache.core.reuse import ChunkReuse
from ragboost.chunk_cache.model.adapter import ModelAdapter
from ragboost.chunk_cache.model.pace import Pace, at_once
from ragboost.chunk_cache.selection import MEASURED, POLICIES, make_policy
from ragboost.chunk_cache.selection.view import SelectionView
from ragboost.chunk_cache.store.tiered import TieredStore
from tests.chunk_cache.families import build_adapter, make_prompt


@pytest.fixture(scope="module", params=["qwen3-qk-norm", "gemma3-local-theta"])
def adapter(request: pytest.FixtureRequest) -> ModelAdapter:
    return build_adapter(request.param)


def test_rows_come_in_order_and_in_pieces_of_the_right_length() -> None:
    rows = torch.arange(10)
    assert [piece.tolist() for piece in Pace(4).pieces(rows)] == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
        [8, 9],
    ]
    assert [len(piece) for piece in Pace(2).pieces(rows, share=1 / 3)] == [6, 4]
    assert [len(piece) for piece in Pace().pieces(rows)] == [10]
    assert list(Pace(4).pieces(rows[:0])) == []


@pytest.mark.parametrize("policy", sorted(POLICIES.keys() - MEASURED))
def test_a_policy_in_small_pieces_chooses_what_it_chooses_at_once(
    adapter: ModelAdapter, policy: str
) -> None:
    system, chunks, question = make_prompt()
    reuse = ChunkReuse(adapter, TieredStore())
    reuse.precompute(system, [chunks[0], *chunks[2:]])
    scores = []
    for rows in (10_000, 3):
        assembly = reuse.assemble(system, chunks, question)
        view = SelectionView(adapter, assembly, budget=12, pace=Pace(rows))
        scores.append(at_once(make_policy(policy).score(view)))
    torch.testing.assert_close(scores[0], scores[1], atol=1e-4, rtol=1e-4)
