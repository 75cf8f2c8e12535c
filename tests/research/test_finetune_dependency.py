"""The tuning script on a tiny model: from questions to a model that the engine serves as tuned."""

import json
import subprocess
import sys
from pathlib import Path

import httpx

from ragboost.config import EngineSettings
from ragboost.engine import builtin, create_engine_app
from ragboost.proxy.serving import serve_in_thread

ROOT = Path(__file__).parents[2]
QUESTIONS = [
    {
        "question": "Where is SpaceX?",
        "answer": "Texas",
        "paths": [["SpaceX", "located in", "Texas"], ["SpaceX", "launched", "Falcon 9"]],
    },
    {
        "question": "Who wrote notes?",
        "answer": "Ada",
        "system": "Be brief.",
        "paths": [["Ada", "wrote", "notes", "about", "engines"]],
    },
]


def test_a_tuned_model_is_served_with_dependency_attention(tmp_path: Path) -> None:
    model, tuned, data = tmp_path / "model", tmp_path / "tuned", tmp_path / "data.jsonl"
    builtin.build_model("tiny", seed=0).save_pretrained(model)
    builtin.build_tokenizer().save_pretrained(model)
    data.write_text("\n".join(json.dumps(question) for question in QUESTIONS * 4))
    command = [sys.executable, "-m", "scripts.finetune_dependency", "--model", str(model)]
    command += ["--data", str(data), "--out", str(tuned), "--epochs", "10", "--batch", "8"]
    done = subprocess.run(
        [*command, "--learning-rate", "3e-3"],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT), "PATH": "", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
    assert rows[-1]["loss"] < rows[0]["loss"] / 4

    with serve_in_thread(create_engine_app(EngineSettings(model=tuned))) as url:
        body = {
            "messages": [{"role": "user", "content": QUESTIONS[0]["question"]}],
            "temperature": 0,
            "max_tokens": 4,
            "ragboost": {"graph": {"paths": QUESTIONS[0]["paths"]}},
        }
        answer = httpx.post(f"{url}/v1/chat/completions", json=body).json()
    assert "ragboost" in answer["usage"]
    assert answer["choices"][0]["message"]["content"] == "Texas"
