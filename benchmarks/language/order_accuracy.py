"""Measure what order, hints and de-duplication do to the answers of a small trained model.

    python -m benchmarks.language.order_accuracy --json
    python -m benchmarks.language.order_accuracy --questions 40

Draws questions with `research.order_tasks`, serves the model by `ragboost engine`, and runs
`ragboost eval-order` against it: first the single questions, then the conversations. Accuracy is a
count, so the load of the machine does not matter. The models come from `scripts/train_order_model`.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.command import make_parser
from ragboost.config import EngineSettings
from ragboost.engine import create_engine_app
from ragboost.serving import serve_in_thread
from research.order_tasks import draw_questions
from scripts.processes import exit_on_sigterm

MODELS = Path(__file__).parents[1] / "models" / "order"


def evaluate(rows: list[dict[str, Any]], folder: Path, *, url: str, model: str) -> dict[str, Any]:
    """Run `ragboost eval-order` on questions; return what it prints."""
    path = folder / f"{len(rows)}.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = [sys.executable, "-m", "ragboost", "eval-order", str(path), "--endpoint", url]
    command += ["--model", model, "--system", "", "--max-tokens", "2", "--metric", "em"]
    command += ["--concurrency", "4", "--yes", "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def measure(model: Path, *, questions: int, conversations: int, seed: int) -> dict[str, Any]:
    """Serve a model and evaluate it on single questions and on conversations."""
    rng = np.random.default_rng(seed)
    rows = list(draw_questions(rng, questions=questions, conversations=conversations))
    results = {}
    app = create_engine_app(EngineSettings(model=model, num_threads=1))
    with tempfile.TemporaryDirectory() as folder, serve_in_thread(app) as url:
        for name, part in (("single", rows[:questions]), ("conversations", rows[questions:])):
            if part:
                results[name] = evaluate(part, Path(folder), url=url, model=model.name)
    return results


def lines(results: Mapping[str, Any]) -> list[str]:
    """Return a line for each arm: accuracy, and the difference to retriever order in points."""
    shown = []
    for name, result in results.items():
        shown.append(f"{name}, {result['compared']} questions")
        for arm, found in result["arms"].items():
            score = found["scores"]["em"]
            low, high = 100 * score["low"], 100 * score["high"]
            shown.append(
                f"  {arm:<18}{100 * score['mean']:6.1f} {100 * score['difference']:+6.1f}"
                f"  ({low:+.1f} to {high:+.1f})  cached {found['predicted_hit_rate']:.1%}"
                f"  changed {found['changed']}"
            )
        shown.append(f"  {result['conclusion']}")
    return shown


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument(
        "--model", type=Path, action="append", help="model directory, repeatable; default: both"
    )
    parser.add_argument("--questions", type=int, default=600, help="single questions")
    parser.add_argument("--conversations", type=int, default=200, help="of three turns")
    parser.add_argument("--seed", type=int, default=7)
    args = parser.parse_args()
    exit_on_sigterm()
    results = {}
    for model in args.model or [MODELS / "hints", MODELS / "plain"]:
        results[model.name] = measure(
            model, questions=args.questions, conversations=args.conversations, seed=args.seed
        )
        if not args.json:
            print(f"{model.name}:", *lines(results[model.name]), sep="\n")
    if args.json:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
