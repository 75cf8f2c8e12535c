"""The trained model of the order benchmark, served by the embedded engine."""

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from ragboost.cli import app
from ragboost.config import EngineSettings
from ragboost.serving import serve_in_thread
from research.order_tasks import draw_questions

MODELS = Path(__file__).parents[2] / "benchmarks" / "models" / "order"


def test_a_model_that_knows_positions_only_loses_by_a_new_order(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="needs the extra engine")
    from ragboost.engine import create_engine_app

    path = tmp_path / "questions.jsonl"
    rows = draw_questions(np.random.default_rng(11), questions=60, conversations=0)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = EngineSettings(model=MODELS / "plain", num_threads=1)
    with serve_in_thread(create_engine_app(settings)) as url:
        command = ["eval-order", str(path), "--endpoint", url, "--model", "plain", "--yes"]
        command += ["--system", "", "--max-tokens", "2", "--metric", "em", "--json"]
        done = CliRunner().invoke(app, [*command, "--arm", "boosted-no-hints", "--arm", "shuffled"])
    assert done.exit_code == 0, done.output
    arms = json.loads(done.stdout)["arms"]

    right = {name: arm["scores"]["em"]["mean"] for name, arm in arms.items()}
    assert right["retriever"] > 0.9
    assert right["boosted-no-hints"] < right["retriever"] - 0.1
    assert right["shuffled"] < right["retriever"] - 0.3
