"""The end-to-end benchmark of chunk reuse answers the reference tasks through proxy and engine."""

import argparse
from pathlib import Path

import torch

from benchmarks.chunks.served_tasks import build_task_model, measure_tasks
from scripts.http_client import SOURCES

torch.set_num_threads(1)


def test_reuse_answers_what_full_attention_answers_and_tokens_add_up(tmp_path: Path) -> None:
    build_task_model(tmp_path)

    result = measure_tasks(tmp_path, argparse.Namespace(prompts=3))

    tokens, total = result["tokens_at_0.15"], result["prompt_tokens_at_0.15"]
    assert sum(tokens.values()) == total
    assert set(tokens) == set(SOURCES)
    assert tokens["reused"] > total / 2
    assert tokens["recomputed"] > 0
    anaphora = result["accuracy"]["anaphora"]
    assert anaphora["exact"] == anaphora["0.15"] == 1.0
    assert anaphora["0"] < 1.0, "the documents depend on each other"
    assert result["normalised"]["local"] is None
