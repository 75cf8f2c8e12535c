"""Measure what order, hints and de-duplication do to the answers of a language model.

    python -m benchmarks.language.order_accuracy --model qwen-0.5b --data FOLDER --questions 200
    python -m benchmarks.language.order_accuracy --model ... --questions 0 --conversations 67
    python -m benchmarks.language.order_accuracy --model ... --arm boosted --order-template TEXT

The questions are about needles in four real documents of about a hundred tokens, four questions a
set of documents, each with its own relevance order. Later turns of conversations ask about a
document of the turn before. Seed 7 draws test questions, another one development questions. Serves
the model by `ragboost engine`, and runs `ragboost eval-order` against it: first the single
questions, then the conversations. Answers are kept in --parts. Accuracy is a count, so the load of
the machine does not matter.
"""

import json
import os
import random
import re
import subprocess
import sys
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.command import make_parser, model_directory
from benchmarks.language.arms import SYSTEM
from benchmarks.language.cases import CountTokens, token_counter
from benchmarks.language.cells import make_cases
from ragboost.config import EngineSettings
from ragboost.config.model_directory import model_name
from ragboost.engine import create_engine_app
from ragboost.proxy.serving import serve_in_thread
from scripts.processes import exit_on_sigterm

NUM_DOCUMENTS, MAX_TOKENS = 4, 130  # of a language model's prompt
CAPACITY = 150_000  # tokens of its prefix cache: the arms share the documents of 200 questions
ORDER_TEMPLATE = "RAGBOOST_HINTS__ORDER_TEMPLATE"
LANGUAGE_ARMS = {
    "single": ("boosted", "boosted-no-hints", "shuffled"),
    "conversations": ("dedup", "dedup-in-place", "dedup-no-hints"),
}


class Needle(NamedTuple):
    """A document with an invented sentence, and the question about it."""

    document: Mapping[str, str | None]
    question: str
    answer: str

    def asked(self, needles: Sequence["Needle"]) -> dict[str, Any]:
        """Return the question over the documents of needles."""
        documents = [needle.document for needle in needles]
        return {"question": self.question, "documents": documents, "answers": [self.answer]}


NeedleSet = tuple[random.Random, list[Needle]]


def evaluate(
    rows: list[dict[str, Any]],
    folder: Path,
    *,
    url: str,
    model: str,
    options: Sequence[str],
    settings: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Run `ragboost eval-order` on questions, with settings as environment variables; return what
    it prints."""
    path = folder / f"{len(rows)}.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = [sys.executable, "-m", "ragboost", "eval-order", str(path), "--endpoint", url]
    command += ["--model", model, "--yes", "--json", *options]
    environment = {**os.environ, **(settings or {})}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def needle_sets(
    data: Path, *, count: int, count_tokens: CountTokens, seed: int
) -> Iterator[NeedleSet]:
    """Yield sets of four documents with a needle each, and dice of their own."""
    cases = make_cases(
        "needles4",
        data,
        count=count,
        num_documents=NUM_DOCUMENTS,
        count_tokens=count_tokens,
        seed=seed,
        longest=MAX_TOKENS,
    )
    for case in cases:
        needles = []
        for document in case.documents:
            found = re.search(r"The door code of (.+?) is (\d+)", document.text)
            assert found is not None, "every document has a needle"
            fields = {"title": document.title, "text": document.text}
            needles.append(Needle(fields, f"What is the door code of {found[1]}?", found[2]))
        yield random.Random(f"{case.id}-{seed}"), needles


def single_rows(sets: Iterable[NeedleSet]) -> Iterator[dict[str, Any]]:
    """Yield questions, a question of each set and then the next of each. A question names its
    document first, and the others of its set in an order of its own."""
    drawn = list(sets)
    for at in range(NUM_DOCUMENTS):
        for rng, needles in drawn:
            others = [other for other in needles if other is not needles[at]]
            rng.shuffle(others)
            yield needles[at].asked([needles[at], *others])


def conversation_rows(sets: Iterable[NeedleSet]) -> Iterator[dict[str, Any]]:
    """Yield conversations of three turns with three documents each. The second and the third ask
    about a document of the turn before."""
    for number, (rng, needles) in enumerate(sets):
        rng.shuffle(needles)
        a, b, c, d = needles
        for listed in ([a, b, c], [b, d, a], [d, c, b]):
            yield {**listed[0].asked(listed), "conversation_id": str(number)}


def measure(model: Path, args: Namespace) -> dict[str, Any]:
    """Serve a model and evaluate it; answers are kept in a folder, for the next run."""
    served = {"dtype": args.dtype, "capacity_tokens": CAPACITY}
    torch.set_num_threads(1)
    app = create_engine_app(EngineSettings(model=model, **served))
    count_tokens = token_counter(app.state.loaded.tokenizer)
    draw = partial(needle_sets, args.data, count_tokens=count_tokens, seed=args.seed)
    single = list(single_rows(draw(count=-(-args.questions // NUM_DOCUMENTS))))[: args.questions]
    turns = list(conversation_rows(draw(count=args.conversations)))
    args.parts.mkdir(parents=True, exist_ok=True)
    kept = args.parts / f"order-{Path(model_name(model)).name}-{args.dtype}.jsonl"
    options = ["--system", SYSTEM, "--max-tokens", "16", "--metric", "contains"]
    options += ["--concurrency", "4", "--answers", str(kept)]
    results = {}
    with serve_in_thread(app) as url:
        asked = {"url": url, "model": app.state.loaded.name}
        for name, rows in (("single", single), ("conversations", turns)):
            arms = [f"--arm={arm}" for arm in args.arm or LANGUAGE_ARMS[name]]
            for template in (args.order_template or [None]) if rows else ():
                settings = {ORDER_TEMPLATE: template} if template else {}
                found = evaluate(
                    rows, args.parts, options=[*options, *arms], settings=settings, **asked
                )
                results[f"{name}, {template}" if template else name] = found
    return results


def lines(results: Mapping[str, Any]) -> list[str]:
    """Return a line for each arm: accuracy, and the difference to retriever order in points."""
    shown = []
    for name, result in results.items():
        shown.append(f"{name}, {result['compared']} questions")
        for arm, found in result["arms"].items():
            score = found["scores"]["contains"]
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
        "--model", type=model_directory, action="append", required=True, help="repeatable"
    )
    parser.add_argument("--data", type=Path, required=True, help="corpus of the documents")
    parser.add_argument("--questions", type=int, default=200, help="single questions")
    parser.add_argument("--conversations", type=int, default=0, help="of three turns")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--dtype", default="auto", help="of the weights")
    parser.add_argument("--arm", action="append", help="repeatable")
    parser.add_argument("--order-template", action="append", help="repeatable")
    parser.add_argument("--parts", type=Path, default=Path("order-parts"), help="kept answers")
    args = parser.parse_args()
    exit_on_sigterm()
    results = {}
    for model in args.model:
        results[model_name(model)] = found = measure(model, args)
        if not args.json:
            print(f"{model_name(model)}:", *lines(found), sep="\n")
    if args.json:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
