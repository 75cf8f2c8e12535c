"""What the question attends to is compared with full attention."""

import argparse

import pytest
import torch

from benchmarks.chunks.attention_maps import measure
from benchmarks.chunks.reference import MODEL

torch.set_num_threads(1)


def test_a_policy_that_computes_layer_1_loses_nothing_there_and_full_attention_nowhere() -> None:
    asked = {"model": MODEL, "prompts": 1, "documents": 8, "haystack": 0, "ratio": 0.15}
    result = measure(argparse.Namespace(**asked, policies="full,reuse,a3"))

    hits, loss = result["hit_rate"], result["loss"]
    assert result["prompts"] == 12  # four tasks, three seeds
    assert hits["full"] == 1.0
    assert hits["reuse"] == 0.0
    assert hits["a3"] > 0.15
    assert max(loss["full"]) == pytest.approx(0, abs=1e-5)
    assert loss["a3"][1] == pytest.approx(0, abs=1e-5)
    assert loss["reuse"][1] > 0.1
    assert all(a <= b for a, b in zip(loss["a3"], loss["reuse"], strict=True))
