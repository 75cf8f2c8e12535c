"""Measure answer quality of chunk reuse by policy and recompute ratio, on cross-chunk tasks.

    python -m benchmarks.chunk_quality --json
    python -m benchmarks.chunk_quality --split development   # the default policy was chosen on this
    python -m benchmarks.chunk_quality --neighbours similarity --json     # see prepared_quality
    python -m benchmarks.chunk_quality --craft --json                     # see craft_quality
    python -m benchmarks.chunk_quality --documents 16 --haystack 8 --policies full,reuse,a3

The model is the project's own, trained on these tasks by scripts/train_reference_model.py. The
splits share no prompts with the training stream or with each other. `score[task][policy][ratio]` is
the accuracy; `normalised` is the share of the loss of full reuse that is recovered (FusionRAG
eq. 11; null for the control task `local`, which loses nothing); `kl` is the divergence from full
attention. All are means over seeds; `error` is the standard error between seeds.
"""

import argparse
import json
import math
import random
import sys
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from benchmarks import craft_quality, prepared_quality
from benchmarks.articles import SOURCES
from benchmarks.parts import part
from ragboost.chunk_cache.core.reuse import ChunkReuse
from ragboost.chunk_cache.eval.cases import Case
from ragboost.chunk_cache.eval.metrics import estimate, normalised
from ragboost.chunk_cache.eval.runner import EvalRow, evaluate
from ragboost.chunk_cache.model.adapter import ModelAdapter
from ragboost.chunk_cache.precompute.prime import measure as measure_offline
from ragboost.chunk_cache.selection import DEFAULT_POLICY, MEASURED, POLICIES
from ragboost.chunk_cache.store.tiered import TieredStore
from research.tasks import TASKS, make_prompts

MODEL = Path(__file__).parent / "reference_model"
SPLITS = {"development": (101, 102, 103), "test": (201, 202, 203)}
RATIOS = (0.05, 0.1, 0.15, 0.3)
UNFAIR = ("oracle", "full", "reuse")
"""Policies excluded as the default: an upper bound that knows the answer, and the two extremes."""

Scores = dict[str, dict[str, dict[str, float | None]]]


def measure(
    model: Path,
    *,
    seed: int,
    prompts: int,
    policies: list[str],
    granularity: int,
    stored: str = "alone",
    documents: int = 8,
    haystack: int = 0,
    parts: Path | None = None,
) -> list[EvalRow]:
    """Evaluate `prompts` prompts of every task, drawn with this seed; finished tasks are saved in
    `parts`."""
    causal_lm = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    reuse = ChunkReuse(ModelAdapter(causal_lm), TieredStore(host_bytes=1 << 28))
    names = "all" if policies == list(POLICIES) else "+".join(policies)

    def on_task(task: str) -> list[Any]:
        made = make_prompts(task, prompts, seed=seed, documents=documents, haystack=haystack)
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
            granularity=granularity,
            store=take if stored == "requests" else None,
        )
        return [asdict(row) for row in found]

    rows = []
    for task in TASKS:
        sizes = f"{prompts}-{granularity}-{documents}-{haystack}"
        name = f"{model.name}-{task}-{seed}-{sizes}-{stored}-{names}"
        rows += [EvalRow(**row) for row in part(parts, name, partial(on_task, task))]
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
        mean = estimate([row.score for row in same])
        score.setdefault(task, {}).setdefault(policy, {})[ratio] = round(mean.mean, 4)
        error.setdefault(task, {}).setdefault(policy, {})[ratio] = (
            None if math.isnan(mean.error) else round(mean.error, 4)
        )
        kl = estimate([row.kl for row in same]).mean
        divergence.setdefault(task, {}).setdefault(policy, {})[ratio] = round(kl, 4)
    for found in (score, error, divergence):
        fill_ends(found)
    for task, by_policy in score.items():
        full, reuse = by_policy["full"]["1"], by_policy["reuse"]["0"]
        assert full is not None
        assert reuse is not None
        for policy, by_ratio in by_policy.items():
            for ratio, value in by_ratio.items():
                assert value is not None
                won = normalised(value, full=full, reuse=reuse) if task != "local" else math.nan
                share.setdefault(task, {}).setdefault(policy, {})[ratio] = (
                    None if math.isnan(won) else round(won, 4)
                )
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


def measure_offline_stage(args: argparse.Namespace) -> None:
    """Run the preprocessing (`prepared_quality`) or Cache-Craft (`craft_quality`) benchmark."""
    seeds = SPLITS[args.split]
    result: dict[str, Any]
    if args.craft:
        result = craft_quality.run(args.model, seeds=seeds, asked=args.articles, parts=args.parts)
        result["split"] = args.split
        show_it = craft_quality.show
    else:
        result = prepared_quality.run(
            args.model,
            seeds=seeds,
            asked=args.articles,
            source=args.neighbours,
            top_n=[int(number) for number in args.top_n.split(",")],
            policies=args.policies.split(",") if args.policies else prepared_quality.POLICIES,
            ratios=prepared_quality.RATIOS,
            parts=args.parts,
        )
        show_it = prepared_quality.show
    if args.json:
        print(json.dumps(result))
    else:
        show_it(result)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
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
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    if args.neighbours or args.craft:
        measure_offline_stage(args)
        return
    policies = args.policies.split(",") if args.policies else list(POLICIES)
    begin = time.process_time()
    runs = [
        measure(
            args.model,
            seed=seed,
            prompts=args.prompts,
            policies=policies,
            granularity=args.granularity,
            stored=args.stored,
            documents=args.documents,
            haystack=args.haystack,
            parts=args.parts,
        )
        for seed in SPLITS[args.split]
    ]
    result = summarise(runs)
    result |= {
        "best_policy": best_policy(result["normalised"]),
        "default_policy": DEFAULT_POLICY,
        "split": args.split,
        "seeds": SPLITS[args.split],
        "prompts": args.prompts,
        "granularity": args.granularity,
        "stored": args.stored,
        "documents": args.documents,
        "haystack": args.haystack,
        "cpu_s": round(time.process_time() - begin),
    }
    if args.json:
        print(json.dumps(result))
    else:
        show(result)


if __name__ == "__main__":
    main()
