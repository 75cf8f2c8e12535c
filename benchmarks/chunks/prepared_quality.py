"""Measure answer quality with and without preprocessing (FusionRAG Fig. 16 and 17), by policy.

    python -m benchmarks.chunks.quality --neighbours similarity --top-n 0,2,5,10,15

Every policy runs on the same prompts with plain KV (top-n 0) and with KV computed after the top-n
neighbours of each chunk. For plain KV, policies that need offline measures (`cachecraft`,
`hybrid-offline`) get them measured after five neighbours.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from benchmarks.chunks.articles import DOCUMENTS, SOURCES, Articles, make_articles
from benchmarks.chunks.reference import SPLITS, load_adapter, mean_and_error, rounded
from benchmarks.parts import part
from ragboost.chunk_cache.core.reuse import ChunkReuse
from ragboost.chunk_cache.eval.metrics import estimate
from ragboost.chunk_cache.eval.prime import measure, prime
from ragboost.chunk_cache.model.adapter import ModelAdapter
from ragboost.chunk_cache.store.keys import behind_key
from ragboost.chunk_cache.store.tiered import TieredStore
from research.runner import EvalRow, evaluate

POLICIES = (
    "random",
    "epic",
    "cacheblend",
    "cacheblend-v",
    "cachecraft",
    "a3",
    "fusionrag",
    "mean-layers",
    "hybrid",
    "hybrid-offline",
    "gradual",
)
RATIOS = (0.05, 0.1, 0.15)
MEASURED_AFTER = 5
"""Number of neighbours for the offline measures of plain chunks."""

Key = tuple[str, str, int, str]  # task, policy, top-n, ratio


def measure_seed(args: argparse.Namespace, seed: int) -> dict[Key, EvalRow]:
    """Evaluate one corpus; return a row per task, policy, number of neighbours and ratio."""
    policies = args.policies.split(",") if args.policies else POLICIES
    adapter = load_adapter(args.model)
    articles = make_articles(seed=seed, asked=args.articles)
    rows: dict[Key, EvalRow] = {}

    def make(number: int) -> list[dict[str, Any]]:
        reuse = _prepare(adapter, articles, source=args.neighbours, top_n=number)
        found = evaluate(reuse, articles.cases, policies=policies, ratios=RATIOS)
        return [asdict(row) for row in found]

    for number in args.top_n:
        name = f"{args.model.name}-{args.neighbours}-{seed}-{number}-{args.articles}"
        name += f"-{'+'.join(policies)}"
        for fields in part(args.parts, name, partial(make, number)):
            row = EvalRow(**fields)
            rows[row.task, row.policy, number, f"{row.ratio:g}"] = row
        print(f"seed {seed}: {args.neighbours}, top-n {number} done", file=sys.stderr)
    return rows


def _prepare(adapter: ModelAdapter, articles: Articles, *, source: str, top_n: int) -> ChunkReuse:
    reuse = ChunkReuse(adapter, TieredStore(host_bytes=2 << 30))
    system = articles.cases[0].system
    neighbours = SOURCES[source](articles, top_n or MEASURED_AFTER)
    for number in range(DOCUMENTS * articles.asked):
        chunk = articles.documents[number]
        others = [articles.documents[other] for other in neighbours[number]]
        if top_n == 0:
            measure(reuse, system, chunk, neighbours=others)
            continue
        kv = prime(reuse, system, chunk, neighbours=others)
        if others:
            reuse.store.put(behind_key(reuse.library.key(chunk)), kv)
    return reuse


def summarise(runs: Sequence[dict[Key, EvalRow]]) -> dict[str, Any]:
    """Return means over seeds by task, policy, top-n and ratio, and the cells in which
    preprocessing lowers the score by more than two standard errors."""
    score: dict[str, Any] = {}
    error: dict[str, Any] = {}
    lower = []
    for key in runs[0]:
        task, policy, top_n, ratio = key
        found = mean_and_error([run[key].score for run in runs])
        for table, value in zip((score, error), found, strict=True):
            cells = table.setdefault(task, {}).setdefault(policy, {}).setdefault(str(top_n), {})
            cells[ratio] = value
        plain = (task, policy, 0, ratio)
        if top_n > 0 and plain in runs[0]:
            change = estimate([run[key].score - run[plain].score for run in runs])
            if change.mean < 0 and not change.mean > -2 * (change.error or 0):
                named = {"task": task, "policy": policy, "top_n": top_n, "ratio": ratio}
                means = {"change": rounded(change.mean), "error": rounded(change.error)}
                lower.append(named | means)
    return {"score": score, "error": error, "lower": lower}


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Evaluate all seeds."""
    begin, seeds = time.process_time(), SPLITS[args.split]
    runs = [measure_seed(args, seed) for seed in seeds]
    first = runs[0]
    return summarise(runs) | {
        "neighbours": args.neighbours,
        "seeds": seeds,
        "articles": args.articles,
        "cases": {task: first[task, "full", args.top_n[0], "1"].num_cases for task, *_ in first},
        "cpu_s": round(time.process_time() - begin),
    }


def show(result: dict[str, Any]) -> None:
    """Print a table per task: a row per policy and ratio, a column per top-n."""
    for task, by_policy in result["score"].items():
        print(f"\n{task} ({result['cases'][task]} prompts per seed), {result['neighbours']}")
        counts = list(by_policy["reuse"])
        print(f"  {'policy':16} ratio ", "  ".join(f"top-n {n:>7}" for n in counts))
        for policy, by_count in by_policy.items():
            errors = result["error"][task][policy]
            for ratio in by_count[counts[0]]:
                cells = (f"{by_count[n][ratio]:.3f} +- {errors[n][ratio] or 0:.2f}" for n in counts)
                print(f"  {policy:16} {ratio:5} ", "  ".join(cells))
    print(f"\ncells lower than plain KV by more than two standard errors: {len(result['lower'])}")
    for cell in result["lower"]:
        print("  ", cell)
