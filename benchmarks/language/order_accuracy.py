"""Measure what order, hints and de-duplication do to the answers of a small trained model, or of a
language model.

    python -m benchmarks.language.order_accuracy --json
    python -m benchmarks.language.order_accuracy --questions 40
    python -m benchmarks.language.order_accuracy --model qwen-0.5b --data DIRECTORY --questions 40

With --data the questions are about needles in four real documents of about a hundred tokens, four
questions a set of documents, each with its own relevance order; answers are kept beside the parts.
Draws questions with `research.order_tasks`, serves the model by `ragboost engine`, and runs
`ragboost eval-order` against it: first the single questions, then the conversations. Accuracy is a
count, so the load of the machine does not matter. The models come from `scripts/train_order_model`.
"""

import json
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.command import make_parser
from benchmarks.language.arms import SYSTEM
from benchmarks.language.cases import CountTokens
from benchmarks.language.cells import make_cases
from ragboost.config import EngineSettings
from ragboost.engine import create_engine_app
from ragboost.serving import serve_in_thread
from research.order_tasks import draw_questions
from scripts.processes import exit_on_sigterm

MODELS = Path(__file__).parents[1] / "models" / "order"
NUM_DOCUMENTS, MAX_TOKENS = 4, 130  # of a language model's prompt
LANGUAGE_ARMS = ("boosted", "boosted-no-hints", "shuffled")


def evaluate(
    rows: list[dict[str, Any]], folder: Path, *, url: str, model: str, options: Sequence[str]
) -> dict[str, Any]:
    """Run `ragboost eval-order` on questions; return what it prints."""
    path = folder / f"{len(rows)}.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = [sys.executable, "-m", "ragboost", "eval-order", str(path), "--endpoint", url]
    command += ["--model", model, "--yes", "--json", *options]
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
                options = ["--system", "", "--max-tokens", "2", "--metric", "em"]
                options += ["--concurrency", "4"]
                results[name] = evaluate(
                    part, Path(folder), url=url, model=model.name, options=options
                )
    return results


def language_rows(
    data: Path, *, questions: int, count_tokens: CountTokens, seed: int
) -> list[dict[str, Any]]:
    """Return questions about needles; each names its document first, and the others of its set in
    an order of its own."""
    cases = make_cases(
        "needles4",
        data,
        count=-(-questions // NUM_DOCUMENTS),
        num_documents=NUM_DOCUMENTS,
        count_tokens=count_tokens,
        seed=seed,
        longest=MAX_TOKENS,
    )
    rows = []
    for case in cases:
        rng = random.Random(f"{case.id}-{seed}")
        for document in case.documents:
            found = re.search(r"The door code of (.+?) is (\d+)", document.text)
            assert found is not None, "every document has a needle"
            others = [other for other in case.documents if other is not document]
            rng.shuffle(others)
            listed = [{"title": d.title, "text": d.text} for d in (document, *others)]
            question = f"What is the door code of {found[1]}?"
            rows.append({"question": question, "documents": listed, "answers": [found[2]]})
    return rows[:questions]


def measure_language(
    model: Path, data: Path, *, questions: int, seed: int, parts: Path
) -> dict[str, Any]:
    """Serve a language model and evaluate it; answers are kept in a folder, for the next run."""
    settings = EngineSettings(model=model, num_threads=1)
    app = create_engine_app(settings)
    tokenizer = app.state.loaded.tokenizer

    def count_tokens(text: str) -> int:
        return len(tokenizer.encode(text, add_special_tokens=False))

    rows = language_rows(data, questions=questions, count_tokens=count_tokens, seed=seed)
    parts.mkdir(parents=True, exist_ok=True)
    options = ["--system", SYSTEM, "--max-tokens", "16", "--metric", "contains"]
    options += ["--concurrency", "1", "--answers", str(parts / f"order-{model.name}.jsonl")]
    for arm in LANGUAGE_ARMS:
        options += ["--arm", arm]
    with serve_in_thread(app) as url:
        name = app.state.loaded.name
        return {"single": evaluate(rows, parts, url=url, model=name, options=options)}


def lines(results: Mapping[str, Any], *, metric: str) -> list[str]:
    """Return a line for each arm: accuracy, and the difference to retriever order in points."""
    shown = []
    for name, result in results.items():
        shown.append(f"{name}, {result['compared']} questions")
        for arm, found in result["arms"].items():
            score = found["scores"][metric]
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
    parser.add_argument("--data", type=Path, help="corpus of the documents of a language model")
    parser.add_argument("--parts", type=Path, default=Path("order-parts"), help="kept answers")
    args = parser.parse_args()
    exit_on_sigterm()
    results = {}
    options = {"questions": args.questions, "seed": args.seed}
    for model in args.model or [MODELS / "hints", MODELS / "plain"]:
        if args.data is not None:
            found = measure_language(model, args.data, parts=args.parts, **options)
        else:
            found = measure(model, conversations=args.conversations, **options)
        results[model.name] = found
        if not args.json:
            metric = "em" if args.data is None else "contains"
            print(f"{model.name}:", *lines(found, metric=metric), sep="\n")
    if args.json:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
