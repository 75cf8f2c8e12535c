"""The experiments' evaluation: both ends, every policy, and decoding as transformers does."""

import math

import numpy as np
import pytest
import torch

from ragboost.chunk_cache.core.reuse import ChunkReuse
from ragboost.chunk_cache.store.tiered import TieredStore
from research.runner import evaluate, greedy, normalised
from research.tasks import TaskPrompt
from tests.chunk_cache.families import build_adapter, flat, make_prompt


def test_normalised_scores_follow_their_formula() -> None:
    assert normalised(0.781, full=0.852, reuse=0.712) == pytest.approx(0.4929, abs=1e-3)
    assert math.isnan(normalised(0.5, full=0.7, reuse=0.7))


def test_greedy_decoding_equals_generate() -> None:
    reuse = ChunkReuse(build_adapter(), TieredStore())
    system, chunks, question = make_prompt()
    ids = torch.tensor([[*system, *flat(chunks), *question]])
    want = reuse.adapter.model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=8, do_sample=False, pad_token_id=0
    )[0, ids.shape[1] :].tolist()
    got = greedy(reuse, reuse.prefill(system, chunks, question), max_new_tokens=8)
    assert got == [token for token in want if token != 2]


def test_evaluation_has_both_ends_and_every_policy() -> None:
    reuse = ChunkReuse(build_adapter(), TieredStore())
    rng = np.random.default_rng(0)
    cases = []
    for _ in range(3):
        system, chunks, question = make_prompt(seed=int(rng.integers(1000)))
        chunk_tuples = tuple(map(tuple, chunks))
        prompt = TaskPrompt(tuple(system), chunk_tuples, tuple(question), 5, "<toy>", (30,))
        cases.append(prompt.case())

    rows = evaluate(reuse, cases, policies=["epic", "oracle"], ratios=[0.1, 0.5])

    assert [(row.policy, row.ratio) for row in rows] == [
        ("full", 1.0),
        ("reuse", 0.0),
        ("epic", 0.1),
        ("epic", 0.5),
        ("oracle", 0.1),
        ("oracle", 0.5),
    ]
    assert rows[0].kl == 0.0 < rows[1].kl
    assert rows[1].recomputed < rows[2].recomputed < rows[3].recomputed < rows[0].recomputed
    assert all(row.num_cases == 3 and row.ttft_s > 0 for row in rows)
