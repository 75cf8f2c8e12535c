"""The benchmark of the time to first token reads KV from disk where it is asked to."""

import argparse
from pathlib import Path

import torch

from benchmarks.chunks.ttft import build, measure

torch.set_num_threads(1)


def test_kv_is_measured_in_memory_and_from_disk(tmp_path: Path) -> None:
    options = {"ratios": [0.15], "policy": "epic", "granularity": 1, "backend": "tiled"}
    timed = {"device": "cpu", "repeats": 1, "disk": True}
    adapter = build("small", layers=1, device="cpu")
    result = measure(adapter, 600, tmp_path, argparse.Namespace(**options, **timed))

    assert set(result["ratio"]) == {"0.15", "0.15 disk"}
    assert len(list((tmp_path / "600").glob("*.safetensors"))) == 3  # system prompt, two chunks
