"""Measure what chunk reuse does to the answers of a language model, by policy and ratio.

    python -m benchmarks.language.chunks --model smollm2-135m --data DIRECTORY --json
    python -m benchmarks.language.chunks ... --questions test --stored captured   # or elsewhere
    python -m benchmarks.language.chunks ... --task coreference     # made by rule, see `cells`
    python -m benchmarks.language.chunks ... --policies reuse@longest,anchored@draw1:0.05
    python -m benchmarks.language.chunks ... --policies shared/full,last/reuse+last

`policy@longest` reuses documents that were stored behind the longest one of the corpus, and
`policy@draw1` behind one that is drawn with this name. `shared/` and `last/` are other orders of
the documents, and `+last` computes the last one whole (`arms`).

Full attention is the ceiling and the first row: where its F1 is under .3, answers say nothing, KL
and agreement do. The first 40 % of a set are development questions, the rest test questions. Every
case is written to a file of `--parts` as it comes; a rerun goes on behind it, with further arms or
cases too. Intervals are those of a bootstrap over cases, whole conversations. Paired are: `loss`,
full attention's F1 minus that of the row, and `contains_loss`, the same of answers that contain the
right one; `behind`, the row's divergence of the answer minus the default's, and `contains_behind`,
the default's right answers minus the row's. Answers are compared with those in the retriever's
order, divergences are from full attention in the row's. `cpu_s` is processor time of the whole
prefill, `cpu_share` that of full attention's.
"""

import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from benchmarks.command import make_parser, model_directory, report, show_rows
from benchmarks.language.arms import MAX_ANSWER_TOKENS, ArmName, ArmRunner, Outcome
from benchmarks.language.cases import (
    MAX_TOKENS,
    CountTokens,
    LanguageCase,
    read_cases,
    read_constant,
    split,
    token_counter,
)
from benchmarks.language.cells import TASKS, make_cases
from ragboost.chunk_cache.eval.arms import FULL, REUSE, Arm, OutcomeFile
from ragboost.chunk_cache.selection import DEFAULT_POLICY, DEFAULT_RATIO, MEASURED, POLICIES
from ragboost.config import EngineSettings
from ragboost.engine.loading import load_model
from ragboost.evaluation.bootstrap import mean_interval, paired_difference
from scripts.processes import exit_on_sigterm

RATIOS = (0.05, 0.1, 0.15, 0.3)


def make_row(
    task: str,
    arm: Arm,
    found: Sequence[Outcome],
    full: Sequence[Outcome],
    groups: Sequence[str],
    *,
    default: Sequence[Outcome] | None = None,
) -> dict[str, Any]:
    """Return the row of an arm over all cases.

    Args:
        default: outcomes of the default policy and ratio, if they were measured.
    """
    row = {
        "task": task,
        "policy": arm[0],
        "ratio": arm[1],
        "n": len(found),
        **_mean("kl", [outcome.kl for outcome in found], groups),
        "kl_answer": fmean(outcome.kl_answer for outcome in found),
        **_mean("same_first", [outcome.same_first for outcome in found], groups),
        **_mean("same_answer", [outcome.same_answer for outcome in found], groups),
        **_scores(found, full, groups),
        **(_behind(found, default, groups) if default else {}),
        "computed": fmean(outcome.computed for outcome in found),
        "cpu_s": fmean(outcome.cpu_s for outcome in found),
        "cpu_share": fmean(o.cpu_s for o in found) / fmean(o.cpu_s for o in full),
    }
    return {name: round(v, 4) if isinstance(v, float) else v for name, v in row.items()}


def _behind(
    found: Sequence[Outcome], default: Sequence[Outcome], groups: Sequence[str]
) -> dict[str, float]:
    """Return by how much further from full attention's answer an arm is than the default one, and
    how many right answers fewer it has."""
    further = [a.kl_answer - b.kl_answer for a, b in zip(found, default, strict=True)]
    right, default_right = _contains(found), _contains(default)
    is_known = right and default_right
    fewer = _difference("contains_behind", right, default_right, groups) if is_known else {}
    return {**_mean("behind", further, groups), **fewer}


def _scores(
    found: Sequence[Outcome], full: Sequence[Outcome], groups: Sequence[str]
) -> dict[str, float]:
    """Return the scores of the answers; nothing if some were not decoded."""
    f1 = [outcome.f1 for outcome in found if outcome.f1 is not None]
    if len(f1) < len(found):
        return {}
    right = _contains(found)
    return {
        **_mean("f1", f1, groups),
        **_difference("loss", f1, [outcome.f1 or 0.0 for outcome in full], groups),
        **_mean("contains", right, groups),
        **_difference("contains_loss", right, _contains(full), groups),
    }


def _contains(outcomes: Sequence[Outcome]) -> list[float]:
    """Return which answers contain the right one; nothing if some were not decoded."""
    found = [outcome.contains for outcome in outcomes if outcome.contains is not None]
    return found if len(found) == len(outcomes) else []


def _mean(name: str, values: Sequence[float], groups: Sequence[str]) -> dict[str, float]:
    interval = mean_interval(values, groups=groups)
    return {name: interval.mean, f"{name}_low": interval.low, f"{name}_high": interval.high}


def _difference(
    name: str, values: Sequence[float], baseline: Sequence[float], groups: Sequence[str]
) -> dict[str, float]:
    """Return the baseline minus the values, paired."""
    found = paired_difference(values, baseline, groups=groups)
    return {name: found.mean, f"{name}_low": found.low, f"{name}_high": found.high}


def measure(args: Namespace) -> dict[str, Any]:
    """Answer the cases in every arm; return a row for each."""
    torch.set_num_threads(args.threads)
    settings = EngineSettings(model=args.model, dtype=args.dtype)
    loaded = load_model(settings)
    count_tokens = token_counter(loaded.tokenizer)
    cases, arms = _cases(args, count_tokens), _arms(args)
    names = {ArmName.of(policy).constant for policy, _ in arms} - {""}
    shape: dict[str, Any] = {"count_tokens": count_tokens, "longest": args.longest}
    task = args.task or args.data.resolve().name
    drawn = f"-{args.data.resolve().name}-{args.seed}" if args.task else ""
    first = "-question-first" if args.question_first else ""
    first += f"-{args.dtype}" if args.dtype != "auto" else ""
    written = f"{args.documents}x{args.longest}-{args.answer_tokens}-{args.stored}{first}"
    path = args.parts / f"{loaded.name}-{task}{drawn}-{written}.jsonl" if args.parts else None
    outcomes = OutcomeFile(path, Outcome)
    runner = ArmRunner(
        loaded,
        stored=args.stored,
        is_question_first=args.question_first,
        answer_tokens=args.answer_tokens,
        constants={name: read_constant(args.data, name, **shape) for name in names},
    )
    for number, case in enumerate(cases, 1):
        if missing := outcomes.missing(case.id, arms):
            outcomes.add(case.id, runner.run(case, missing, answers=not args.no_answers))
        print(f"{task}: {number} of {len(cases)}", file=sys.stderr, flush=True)
    groups = [case.group for case in cases]
    found = {arm: [outcomes.of(case.id, arm) for case in cases] for arm in arms}
    default = found.get((DEFAULT_POLICY, DEFAULT_RATIO))
    rows = [make_row(task, arm, found[arm], found[FULL], groups, default=default) for arm in arms]
    options = {name: getattr(args, name) for name in ("questions", "stored", "documents")}
    return {"model": loaded.name, **options, "rows": rows}


def _cases(args: Namespace, count_tokens: CountTokens) -> list[LanguageCase]:
    shape: dict[str, Any] = {
        "num_documents": args.documents,
        "count_tokens": count_tokens,
        "longest": args.longest,
    }
    if args.task:
        cases = make_cases(args.task, args.data, count=args.cases, seed=args.seed, **shape)
    else:
        cases = read_cases(args.data, **shape)
    found = split(cases, args.questions)
    others = found[1:2] + found  # each case has its strangers from the one before
    if found := [_beside(case, other) for case, other in zip(found, others, strict=False)]:
        return found[: args.limit]
    sys.exit(f"{args.data} has no {args.questions} question with {args.documents} documents")


def _beside(case: LanguageCase, other: LanguageCase) -> LanguageCase:
    strangers = [replace(document, id=f"other_{document.id}") for document in other.documents]
    return replace(case, strangers=tuple(strangers))


def _arms(args: Namespace) -> list[Arm]:
    policies = args.policies.split(",") if args.policies else list(POLICIES)
    if args.stored != "alone":  # measuring stores them alone
        policies = [policy for policy in policies if policy not in MEASURED]
    ratios, arms = [float(ratio) for ratio in args.ratios.split(",")], [FULL, REUSE]
    for policy in policies:
        name, _, ratio = policy.partition(":")
        if (plain := ArmName.of(name).policy) in ("full", "reuse"):
            arms.append((name, float(plain == "full")))
        else:
            arms += [(name, r) for r in ([float(ratio)] if ratio else ratios)]
    return list(dict.fromkeys(arms))


def show(result: dict[str, Any]) -> None:
    names = [
        "policy",
        "ratio",
        "kl",
        "kl_answer",
        "behind",
        "same_first",
        "same_answer",
        "f1",
        "contains",
        "contains_loss",
        "cpu_share",
    ]
    title = f"{result['rows'][0]['task']}, {result['model']}, {result['questions']} questions"
    show_rows([{name: row.get(name) for name in names} for row in result["rows"]], title)


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument(
        "--model", type=model_directory, help="name or directory; default: the built-in one"
    )
    parser.add_argument("--data", type=Path, required=True, help="folder of a retrieval run")
    parser.add_argument("--questions", choices=("development", "test"), default="development")
    parser.add_argument("--task", choices=TASKS, help="made by rule, with fillers from --data")
    parser.add_argument("--cases", type=int, default=200, help="of a --task, before the split")
    parser.add_argument("--seed", type=int, default=11, help="of a --task")
    parser.add_argument("--documents", type=int, default=10, help="of a prompt")
    parser.add_argument("--longest", type=int, default=MAX_TOKENS, help="tokens of a document")
    parser.add_argument("--answer-tokens", type=int, default=MAX_ANSWER_TOKENS, help="at most")
    parser.add_argument(
        "--stored", choices=("alone", "captured", "elsewhere", "primed"), default="alone"
    )
    parser.add_argument(
        "--question-first", action="store_true", help="ask before the documents, not behind them"
    )
    parser.add_argument(
        "--policies", default="", help="comma-separated, or policy:ratio; default: all served"
    )
    parser.add_argument("--ratios", default=",".join(map(str, RATIOS)), help="comma-separated")
    parser.add_argument(
        "--no-answers", action="store_true", help="no F1: decode full attention's answers only"
    )
    parser.add_argument("--limit", type=int, help="most cases")
    parser.add_argument("--parts", type=Path, help="folder of finished cases, to resume from")
    parser.add_argument("--dtype", default="auto", help="of the weights")
    parser.add_argument("--threads", type=int, default=1, help="torch's")
    args = parser.parse_args()
    exit_on_sigterm()
    report(measure(args), args, show)


if __name__ == "__main__":
    main()
