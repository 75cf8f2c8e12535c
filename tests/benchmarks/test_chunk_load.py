"""The load on chunk reuse sends all arms the same prompts, and its counts add up."""

import argparse
import json
from pathlib import Path

import pytest
import torch

from benchmarks.chunks.load import measure_closed, measure_open
from benchmarks.chunks.served import build_model

torch.set_num_threads(1)


def test_reuse_computes_fewer_tokens_of_the_same_prompts(tmp_path: Path) -> None:
    rows = [{"id": str(n), "doc_ids": ["a", "b", "c"][n:] + ["a", "b", "c"][:n]} for n in range(3)]
    files = {
        "retrieved_dense.jsonl": rows,
        "queries.jsonl": [{"id": row["id"], "question": "What is it?"} for row in rows],
        "corpus.jsonl": [{"id": d, "text": f"{d} " + "many words " * 20} for d in "abc"],
    }
    for name, lines in files.items():
        (tmp_path / name).write_text("\n".join(map(json.dumps, lines)))

    build_model(tmp_path / "model", layers=3)
    result = measure_closed(
        tmp_path / "model",
        argparse.Namespace(
            data=tmp_path,
            retriever="dense",
            corpus="extracts",
            k=3,
            requests=2,
            warm=1,
            ratios=[0.15],
            at_once=1,
            layers=3,
            new_tokens=1,
            capacity_tokens=4096,
        ),
    )

    prefix, reuse = result["prefix"], result["0.15"]
    # Documents are tokenised one by one for reuse.
    assert prefix["prompt_tokens"] == pytest.approx(reuse["prompt_tokens"], rel=0.03)
    assert prefix["tokens"]["reused"] == prefix["tokens"]["recomputed"] == 0
    assert reuse["tokens"]["reused"] > reuse["tokens"]["recomputed"] > 0
    assert reuse["computed"] < prefix["computed"]
    assert result["over_prefix"]["0.15"]["fewer_tokens"] > 0.5


def test_every_arm_is_measured_and_policies_reuse_documents(tmp_path: Path) -> None:
    build_model(tmp_path, layers=3)
    shape = {"requests": 3, "k": 2, "corpus": 4, "layers": 3}
    asked = {**shape, "ratio": 0.15, "capacity_tokens": 8192}
    result = measure_open(tmp_path, argparse.Namespace(**asked, loads=[2.0], arms=["gradual"]))

    full, gradual = result["rows"]
    assert (full["arm"], gradual["arm"]) == ("full", "gradual")
    assert full["per_s"] == gradual["per_s"] > 0
    assert full["reused_share"] == 0.0
    assert gradual["reused_share"] > 0.3
    assert min(full["ttft_s"], gradual["ttft_s"]) > 0
