"""Measure offline planning: time and memory of clustering, and token hit rate of the plan.

    python -m benchmarks.ordering.plan --contexts 12000 --json
    python -m benchmarks.ordering.plan --data FOLDER --retriever dense

Compares plain order, the plan and the paper's linkage with the exact prefix-cache
simulator. Times are seconds of wall and processor time, memory is peak RSS in MB.
"""

import argparse
import resource
import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.command import make_parser, report, show_rows
from benchmarks.datasets.retrieval import load_data
from benchmarks.datasets.workloads import Workload, generate, hit_rates, planned_orders
from ragboost.index.clustering import EXACT_CONTEXTS
from ragboost.ordering import plan_batch
from research.distance import plan_by_distance

PAPER_CONTEXTS = 4_000
"""Largest batch planned by default with the paper's quadratic linkage, which then takes minutes."""


def main() -> None:
    parser = make_parser(__doc__)
    add_workload_arguments(parser, contexts=12_000)
    parser.add_argument("--repeats", type=int, default=3, help="plans; build_s is the median")
    parser.add_argument(
        "--exact-contexts",
        type=int,
        default=EXACT_CONTEXTS,
        help="largest batch clustered as a whole; larger ones are clustered in parts",
    )
    parser.add_argument("--paper", action="store_true", help="run the paper's linkage at any size")
    args = parser.parse_args()
    result = measure(
        workload_of(args),
        repeats=args.repeats,
        exact_contexts=args.exact_contexts,
        paper=args.paper,
    )
    report(result, args, show)


def add_workload_arguments(parser: argparse.ArgumentParser, *, contexts: int) -> None:
    """Add the arguments that choose the requests."""
    parser.add_argument("--workload", choices=("zipf", "topics", "neardup"), help="default: zipf")
    parser.add_argument("--contexts", type=int, default=contexts, help="requests to generate")
    parser.add_argument("--k", type=int, default=15, help="documents per request")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--data", type=Path, help="folder of retrieval runs to use instead")
    parser.add_argument("--retriever", default="dense", help="retrieval run of the folder")


def workload_of(args: argparse.Namespace) -> Workload:
    """Return the workload selected by the arguments."""
    if args.data is not None:
        return load_data(args.data, workload=args.workload, retriever=args.retriever, k=args.k)
    return generate(args.workload or "zipf", args.contexts, k=args.k, seed=args.seed)


def measure(
    workload: Workload,
    *,
    repeats: int,
    exact_contexts: int = EXACT_CONTEXTS,
    paper: bool = False,
) -> dict[str, Any]:
    """Plan the workload and simulate its hit rates.

    `is_exact`: clustered as a whole, not in parts. `build_s`: median of full plans, that is
    clustering, document orders and release order. Hit rates are by cache capacity in tokens; those
    of the paper None if not run. `peak_rss_mb` is of the process after the default plan.
    """
    walls, cpus = [], []
    for _ in range(repeats):
        started, cpu = time.perf_counter(), time.process_time()
        plan = plan_batch(workload.contexts, workload.tokens, exact_contexts=exact_contexts)
        walls.append(time.perf_counter() - started)
        cpus.append(time.process_time() - cpu)
    peak_rss_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    result: dict[str, Any] = {
        "workload": workload.name,
        "contexts": len(workload.contexts),
        "is_exact": len(workload.contexts) <= exact_contexts,
        "build_s": round(statistics.median(walls), 3),
        "cpu_s": round(statistics.median(cpus), 3),
        "peak_rss_mb": round(peak_rss_mb),
        "hit_rate": hit_rates(planned_orders(workload, plan), workload.tokens),
        "baseline_hit_rate": hit_rates(workload.contexts, workload.tokens),
        "paper_hit_rate": None,
        "paper_build_s": None,
    }
    if paper or len(workload.contexts) <= PAPER_CONTEXTS:
        started = time.perf_counter()
        paper_plan = plan_by_distance(workload.contexts, workload.tokens)
        result["paper_build_s"] = round(time.perf_counter() - started, 3)
        result["paper_hit_rate"] = hit_rates(planned_orders(workload, paper_plan), workload.tokens)
    return result


def show_hit_rates(rates: Mapping[str, Mapping[str, float]], title: str) -> None:
    """Print a row for each kind of orders, and a column for each capacity."""
    show_rows(
        [
            {"token hit rate at": name, **{size: f"{rate:.3f}" for size, rate in by_size.items()}}
            for name, by_size in rates.items()
        ],
        title,
    )


def show(result: dict[str, Any]) -> None:
    rates = {
        "plain order": result["baseline_hit_rate"],
        "paper (distance)": result["paper_hit_rate"],
        "RAGBoost (savings)": result["hit_rate"],
    }
    title = f"{result['workload']}: {result['contexts']} contexts"
    show_hit_rates({name: rate for name, rate in rates.items() if rate is not None}, title)
    print(
        f"planned in {result['build_s']} s ({result['cpu_s']} s of CPU), "
        f"peak memory {result['peak_rss_mb']} MB"
    )


if __name__ == "__main__":
    main()
