"""Measure online ordering: time per request and token hit rate for requests in order of arrival.

    python -m benchmarks.online --contexts 100000 --json
    python -m benchmarks.online --contexts 10000 --window 64    # plan 64 waiting requests together

Search, ordering and insertion of each request are timed together, in microseconds, while the index
grows to `--contexts` contexts. Hit rates come from the prefix-cache simulator.
"""

import argparse
import json
import math
import time
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table

from benchmarks.plan import add_workload_arguments, workload_of
from benchmarks.workloads import CAPACITIES, Workload, hit_rates
from ragboost.config import OrderingSettings
from ragboost.index import ContextIndex
from ragboost.ordering import (
    CorpusPrior,
    OrderPolicy,
    make_order_policy,
    order_documents,
    plan_next,
)
from ragboost.retrieval import BM25Retriever, Corpus
from ragboost.retrieval.warm import imagine_contexts
from ragboost.simulate import simulate

Tail = Literal["relevance", "popularity"]
Orders = list[Sequence[Hashable]]
Micros = npt.NDArray[np.float64]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_workload_arguments(parser, contexts=100_000)
    parser.add_argument(
        "--tail",
        choices=("relevance", "popularity"),
        default="popularity",
        help="order of uncached documents",
    )
    parser.add_argument("--window", type=int, default=1, help="requests planned together")
    parser.add_argument(
        "--warm",
        type=int,
        default=0,
        metavar="N",
        help="give the popularity tail what BM25 finds for N documents of the data's corpus",
    )
    parser.add_argument(
        "--unbounded", action="store_true", help="simulate the unbounded cache only"
    )
    args = parser.parse_args()
    result = measure(
        workload_of(args),
        tail=args.tail,
        window=args.window,
        prior=warm(args.data, k=args.k, limit=args.warm) if args.warm else None,
        unbounded=args.unbounded,
    )
    if args.json:
        print(json.dumps(result))
    else:
        show(result)


def warm(folder: Path, *, k: int, limit: int) -> CorpusPrior:
    """Return the prior of a corpus whose documents are named by their ids."""
    documents = Corpus.read(next(iter(sorted(folder.glob("corpus.jsonl*")))))
    contexts = imagine_contexts(documents, BM25Retriever(documents), k=k, limit=limit)
    return CorpusPrior([[str(document.id)] for document in documents], contexts)


def measure(
    workload: Workload,
    *,
    tail: Tail,
    window: int = 1,
    prior: CorpusPrior | None = None,
    unbounded: bool = False,
) -> dict[str, Any]:
    """Replay the requests once per cache capacity, with an index of that capacity.

    Returns:
        `workload`, `contexts`, `tail`, `window`; wall time per request with the unbounded index
        (`p50_us`, `p99_us`, `mean_us`), and thread processor time, which is less noisy
        (`cpu_p50_us`, `cpu_p99_us`); `hit_rate` and `baseline_hit_rate` by cache capacity in
        tokens.
    """
    capacities = {"unbounded": None} if unbounded else CAPACITIES
    rates: dict[str, float] = {}
    for name, capacity in capacities.items():
        orders, micros, cpu_micros = replay(
            workload, capacity, tail=tail, window=window, prior=prior
        )
        rates[name] = round(simulate(orders, workload.tokens, capacity_tokens=capacity).hit_rate, 4)
    return {
        "workload": workload.name,
        "contexts": len(workload.contexts),
        "tail": tail,
        "window": window,
        "p50_us": round(float(np.percentile(micros, 50)), 1),
        "p99_us": round(float(np.percentile(micros, 99)), 1),
        "mean_us": round(float(micros.mean()), 1),
        "cpu_p50_us": round(float(np.percentile(cpu_micros, 50)), 1),
        "cpu_p99_us": round(float(np.percentile(cpu_micros, 99)), 1),
        "hit_rate": rates,
        "baseline_hit_rate": hit_rates(workload.contexts, workload.tokens),
    }


def replay(
    workload: Workload,
    capacity: int | None,
    *,
    tail: Tail,
    window: int,
    prior: CorpusPrior | None = None,
) -> tuple[Orders, Micros, Micros]:
    """Order all requests.

    Returns:
        The orders, and microseconds of wall and processor time per request, (requests,) each.
    """
    index = ContextIndex(capacity_tokens=capacity, max_nodes=2 * len(workload.contexts) + 1)
    settings = OrderingSettings(tail=tail)
    policy = make_order_policy(settings, prior)
    orders: Orders = []
    nanos, cpu_nanos = [], []
    for at in range(0, len(workload.contexts), window):
        contexts = workload.contexts[at : at + window]
        started, cpu = time.perf_counter_ns(), time.thread_time_ns()
        if window > 1:
            orders.extend(_plan(index, contexts, workload.tokens, policy))
        else:
            orders.append(_order(index, contexts[0], workload.tokens, settings, policy))
        taken, cpu_taken = time.perf_counter_ns() - started, time.thread_time_ns() - cpu
        nanos += [taken / len(contexts)] * len(contexts)
        cpu_nanos += [cpu_taken / len(contexts)] * len(contexts)
    return orders, np.array(nanos) / 1000, np.array(cpu_nanos) / 1000


def _plan(
    index: ContextIndex,
    contexts: Sequence[Sequence[Hashable]],
    tokens: Mapping[Hashable, int],
    policy: OrderPolicy,
) -> Orders:
    """Send a window of requests one after another."""
    left, orders = list(contexts), []
    while left:
        at, order, _ = plan_next(index, left, tokens, policy=policy, budget_tokens=math.inf)
        index.insert(order, [tokens[document] for document in order])
        policy.add(left.pop(at))
        orders.append(list(order))
    return orders


def _order(
    index: ContextIndex,
    context: Sequence[Hashable],
    tokens: Mapping[Hashable, int],
    settings: OrderingSettings,
    policy: OrderPolicy,
) -> list[Hashable]:
    lengths = [tokens[document] for document in context]
    permutation = order_documents(
        index, context, lengths, settings=settings, policy=policy
    ).permutation
    order = [context[i] for i in permutation]
    index.insert(order, [lengths[i] for i in permutation])
    policy.add(context)
    return order


def show(result: dict[str, Any]) -> None:
    """Print a table."""
    table = Table(
        title=f"{result['workload']}: {result['contexts']} contexts, windows of {result['window']}"
    )
    table.add_column("token hit rate at")
    for name in result["hit_rate"]:
        table.add_column(name, justify="right")
    for label, field in (
        ("plain order", "baseline_hit_rate"),
        (f"RAGBoost ({result['tail']})", "hit_rate"),
    ):
        table.add_row(label, *(f"{result[field][name]:.3f}" for name in result["hit_rate"]))
    console = Console()
    console.print(table)
    console.print(f"per request: p50 {result['p50_us']} us, p99 {result['p99_us']} us")


if __name__ == "__main__":
    main()
