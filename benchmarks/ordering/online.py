"""Measure online ordering: time per request and token hit rate for requests in order of arrival.

    python -m benchmarks.ordering.online --contexts 100000 --json
    python -m benchmarks.ordering.online --contexts 10000 --window 64  # plan 64 together

Search, ordering and insertion of each request are timed together, in microseconds, while the index
grows to `--contexts` contexts. Hit rates come from the prefix-cache simulator.
"""

import math
import time
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from benchmarks.command import make_parser, report
from benchmarks.datasets.workloads import CAPACITIES, Workload, hit_rates
from benchmarks.ordering.plan import add_workload_arguments, show_hit_rates, workload_of
from ragboost.batch.simulate import simulate
from ragboost.config import OrderingSettings
from ragboost.index import ContextIndex
from ragboost.ordering import (
    OrderPolicy,
    make_order_policy,
    order_documents,
    plan_next,
)

Tail = Literal["relevance", "popularity"]
Orders = list[Sequence[Hashable]]
Micros = npt.NDArray[np.float64]


def main() -> None:
    parser = make_parser(__doc__)
    add_workload_arguments(parser, contexts=100_000)
    parser.add_argument(
        "--tail",
        choices=("relevance", "popularity"),
        default="popularity",
        help="order of uncached documents",
    )
    parser.add_argument("--window", type=int, default=1, help="requests planned together")
    parser.add_argument(
        "--unbounded", action="store_true", help="simulate the unbounded cache only"
    )
    args = parser.parse_args()
    result = measure(
        workload_of(args),
        tail=args.tail,
        window=args.window,
        unbounded=args.unbounded,
    )
    report(result, args, show)


def measure(
    workload: Workload,
    *,
    tail: Tail,
    window: int = 1,
    unbounded: bool = False,
) -> dict[str, Any]:
    """Replay the requests once per cache capacity, with an index of that capacity.

    Times are of the unbounded index: wall, and processor time of the thread, which is less noisy.
    """
    capacities = {"unbounded": None} if unbounded else CAPACITIES
    rates: dict[str, float] = {}
    net: dict[str, float] = {}  # of the order hints, each of which a reordered request carries
    reordered: dict[str, float] = {}  # share of the requests
    num_tokens = sum(workload.tokens[d] for context in workload.contexts for d in context)
    for name, capacity in capacities.items():
        orders, micros, cpu_micros = replay(workload, capacity, tail=tail, window=window)
        rates[name] = round(simulate(orders, workload.tokens, capacity_tokens=capacity).hit_rate, 4)
        if window == 1:
            moved = [len(b) for a, b in zip(orders, workload.contexts, strict=True) if [*a] != b]
            reordered[name] = round(len(moved) / len(orders), 4)
            hints = sum(moved) * OrderPolicy.hint_tokens / num_tokens
            net[name] = round(rates[name] - hints, 4)
    return {
        "workload": workload.name,
        "contexts": len(workload.contexts),
        "tail": tail,
        "window": window,
        **{f"p{p}_us": round(float(np.percentile(micros, p)), 1) for p in (50, 99)},
        "mean_us": round(float(micros.mean()), 1),
        **{f"cpu_p{p}_us": round(float(np.percentile(cpu_micros, p)), 1) for p in (50, 99)},
        "hit_rate": rates,
        "net_of_hints": net,
        "reordered": reordered,
        "baseline_hit_rate": hit_rates(workload.contexts, workload.tokens),
    }


def replay(
    workload: Workload,
    capacity: int | None,
    *,
    tail: Tail,
    window: int,
) -> tuple[Orders, Micros, Micros]:
    """Return the orders, and microseconds of wall and processor time per request."""
    index = ContextIndex(capacity_tokens=capacity, max_nodes=2 * len(workload.contexts) + 1)
    settings = OrderingSettings(tail=tail)
    policy = make_order_policy(settings)
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
    left, orders = list(contexts), list[Sequence[Hashable]]()
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
    order = order_documents(index, context, lengths, settings=settings, policy=policy)
    index.insert(order.documents, order.tokens)
    policy.add(context)
    return [*order.documents]


def show(result: dict[str, Any]) -> None:
    title = f"{result['workload']}: {result['contexts']} contexts, windows of {result['window']}"
    rates = {"plain order": result["baseline_hit_rate"]}
    show_hit_rates(rates | {f"RAGBoost ({result['tail']})": result["hit_rate"]}, title)
    print(f"net of hints: {result['net_of_hints']}; reordered: {result['reordered']}")
    print(f"per request: p50 {result['p50_us']} us, p99 {result['p99_us']} us")


if __name__ == "__main__":
    main()
