"""Measure answer quality of chunk reuse by policy and recompute ratio, on cross-chunk tasks.

    python -m benchmarks.chunks.quality --json
    python -m benchmarks.chunks.quality --split development # chose the default policy
    python -m benchmarks.chunks.quality --neighbours similarity --json     # see prepared_quality
    python -m benchmarks.chunks.quality --craft --json                     # see craft_quality
    python -m benchmarks.chunks.quality --documents 16 --haystack 8 --policies full,reuse,a3

`score[task][policy][ratio]` is the accuracy of the reference model; `normalised` is the share of
the loss of full reuse that is recovered (FusionRAG eq. 11; null for the control task `local`, which
loses nothing); `kl` is the divergence from full attention. All are means over seeds; `error` is the
standard error between seeds.
"""

import argparse
import math
import random
import sys
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.chunks import craft_quality, prepared_quality
from benchmarks.chunks.articles import SOURCES
from benchmarks.chunks.reference import MODEL, SPLITS, load_reuse, mean_and_error, rounded
from benchmarks.command import make_parser, report
from benchmarks.parts import part
from ragboost.chunk_cache.eval.cases import Case
from ragboost.chunk_cache.eval.prime import measure as measure_offline
from ragboost.chunk_cache.selection import DEFAULT_POLICY, MEASURED, POLICIES
from research.runner import EvalRow, evaluate, normalised
from research.tasks import TASKS, make_prompts

RATIOS = (0.05, 0.1, 0.15, 0.3)
UNFAIR = ("oracle", "full", "reuse")
"""Policies excluded as the default: an upper bound that knows the answer, and the two extremes."""

Scores = dict[str, dict[str, dict[str, float | None]]]


def measure(args: argparse.Namespace, policies: list[str], seed: int) -> list[EvalRow]:
    """Evaluate prompts of every task, drawn with this seed; finished tasks are saved."""
    reuse = load_reuse(args.model)
    names = "all" if policies == list(POLICIES) else "+".join(policies)
    shape = {"seed": seed, "documents": args.documents, "haystack": args.haystack}

    def on_task(task: str) -> list[Any]:
        made = make_prompts(task, args.prompts, **shape)
        drawn = [prompt.case() for prompt in made]
        if MEASURED & set(policies):
            unrelated = make_prompts("local", 4, seed=seed + 1000)
            for case in drawn:
                for number, chunk in enumerate(case.chunks):
                    neighbours = unrelated[number % 4].chunks[:4]
                    measure_offline(reuse, case.system, chunk, neighbours=neighbours)
        rng = random.Random(seed)

        def take(case: Case) -> None:
            chunks = rng.sample(case.chunks, len(case.chunks))
            reuse.prefill(case.system, chunks, case.question, policy="full", keep=True)

        found = evaluate(
            reuse,
            drawn,
            policies=policies,
            ratios=RATIOS,
            granularity=args.granularity,
            store=take if args.stored == "requests" else None,
        )
        return [asdict(row) for row in found]

    rows = []
    for task in TASKS:
        sizes = f"{args.prompts}-{args.granularity}-{args.documents}-{args.haystack}"
        name = f"{args.model.name}-{task}-{seed}-{sizes}-{args.stored}-{names}"
        rows += [EvalRow(**row) for row in part(args.parts, name, partial(on_task, task))]
        print(f"seed {seed}: {task} done", file=sys.stderr)
    return rows


def summarise(runs: list[list[EvalRow]]) -> dict[str, Any]:
    """Return means over the runs, one run per seed, by task, policy and ratio."""
    score: Scores = {}
    share: Scores = {}
    error: Scores = {}
    divergence: Scores = {}
    for same in zip(*runs, strict=True):
        task, policy, ratio = same[0].task, same[0].policy, f"{same[0].ratio:g}"
        found = *mean_and_error([r.score for r in same]), mean_and_error([r.kl for r in same])[0]
        for table, value in zip((score, error, divergence), found, strict=True):
            table.setdefault(task, {}).setdefault(policy, {})[ratio] = value
    for table in (score, error, divergence):
        fill_ends(table)
    for task, by_policy in score.items():
        full, reuse = by_policy["full"]["1"], by_policy["reuse"]["0"]
        assert full is not None
        assert reuse is not None
        for policy, by_ratio in by_policy.items():
            for ratio, value in by_ratio.items():
                assert value is not None
                won = normalised(value, full=full, reuse=reuse) if task != "local" else math.nan
                share.setdefault(task, {}).setdefault(policy, {})[ratio] = rounded(won)
    return {"score": score, "error": error, "normalised": share, "kl": divergence}


def fill_ends(values: Scores) -> None:
    """Add the ends of every policy's curve: full reuse at ratio 0, full attention at ratio 1."""
    for by_policy in values.values():
        full, reuse = by_policy["full"]["1"], by_policy["reuse"]["0"]
        for policy, by_ratio in by_policy.items():
            if policy not in ("full", "reuse"):
                by_policy[policy] = {"0": reuse, **by_ratio, "1": full}


def best_policy(normalised_scores: Scores) -> str:
    """Return the policy with the best worst-case task over the ratios 0.1 and 0.15."""
    tasks = [task for task in normalised_scores if task != "local"]
    worst = {
        policy: min(
            normalised_scores[task][policy][ratio] or 0.0
            for task in tasks
            for ratio in ("0.1", "0.15")
        )
        for policy in normalised_scores[tasks[0]]
        if policy not in UNFAIR
    }
    return max(worst, key=lambda policy: worst[policy])


def show(result: dict[str, Any]) -> None:
    for task, by_policy in result["score"].items():
        full, reuse = by_policy["full"]["1"], by_policy["reuse"]["0"]
        print(f"\n{task}: full attention {full:.3f}, full reuse {reuse:.3f}")
        for policy, by_ratio in by_policy.items():
            if policy not in ("full", "reuse"):
                cells = (
                    f"{by_ratio[ratio]:.3f} +- {result['error'][task][policy][ratio] or 0:.3f}"
                    for ratio in by_ratio
                    if ratio not in ("0", "1")
                )
                print(f"  {policy:18}", "  ".join(cells))
    print(f"\nbest policy: {result['best_policy']}; default: {result['default_policy']}")


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--model", type=Path, default=MODEL, help="reference model")
    parser.add_argument("--split", choices=SPLITS, default="test", help="prompts to evaluate on")
    parser.add_argument("--prompts", type=int, default=100, help="prompts per task and seed")
    parser.add_argument("--documents", type=int, default=8, help="2 to 16 per prompt")
    parser.add_argument(
        "--haystack", type=int, default=0, help="documents of fillers alone among them"
    )
    parser.add_argument("--policies", default="", help="comma-separated; default: all")
    parser.add_argument("--granularity", type=int, default=1, help="tokens per selected block")
    parser.add_argument(
        "--stored",
        choices=("alone", "requests"),
        default="alone",
        help="reuse chunks that were computed alone, or taken from a request in another order",
    )
    parser.add_argument(
        "--neighbours", choices=SOURCES, help="measure preprocessing with these neighbours"
    )
    parser.add_argument("--top-n", default="0,2,5,10,15", help="neighbour counts for --neighbours")
    parser.add_argument(
        "--articles", type=int, default=30, help="articles with questions, per seed"
    )
    parser.add_argument("--parts", type=Path, help="folder of finished parts, to resume from")
    parser.add_argument("--craft", action="store_true", help="measure Cache-Craft")
    args = parser.parse_args()
    args.top_n = [int(number) for number in args.top_n.split(",")]
    if args.craft or args.neighbours:
        stage = craft_quality if args.craft else prepared_quality
        report(stage.run(args) | {"split": args.split}, args, stage.show)
        return
    policies = args.policies.split(",") if args.policies else list(POLICIES)
    begin = time.process_time()
    result = summarise([measure(args, policies, seed) for seed in SPLITS[args.split]])
    shape = ("split", "prompts", "granularity", "stored", "documents", "haystack")
    result |= {
        "best_policy": best_policy(result["normalised"]),
        "default_policy": DEFAULT_POLICY,
        "seeds": SPLITS[args.split],
        **{name: getattr(args, name) for name in shape},
        "cpu_s": round(time.process_time() - begin),
    }
    report(result, args, show)


if __name__ == "__main__":
    main()
