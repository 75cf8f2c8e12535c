"""The benchmark of request rates measures every arm on the same requests."""

import argparse
from pathlib import Path

import torch

from benchmarks.chunks.end_to_end import build_model
from benchmarks.chunks.rates import measure

torch.set_num_threads(1)


def test_every_arm_is_measured_and_policies_reuse_documents(tmp_path: Path) -> None:
    build_model(tmp_path, layers=3)
    asked = {"requests": 3, "k": 2, "corpus": 4, "ratio": 0.15, "capacity_tokens": 8192}
    result = measure(tmp_path, argparse.Namespace(**asked, loads=[2.0], arms=["gradual"]))

    full, gradual = result["rows"]
    assert (full["arm"], gradual["arm"]) == ("full", "gradual")
    assert full["per_s"] == gradual["per_s"] > 0
    assert full["reused_share"] == 0.0
    assert gradual["reused_share"] > 0.3
    assert min(full["ttft_s"], gradual["ttft_s"]) > 0
