"""Measure orders as a share of the oracle: the best order that a long offline search finds.

    python -m benchmarks.ordering.oracle --data FOLDER --retriever bm25 --seconds 300 --json
    python -m benchmarks.ordering.oracle --workload topics --contexts 2000 --capacity 100000

A share is an order's gain in hit rate over the plain order, divided by the oracle's gain. The
oracle knows all requests and may send them in any order; requests in order of arrival cannot reach
it. Meant for 300 to 2,000 requests.
"""

import time
from typing import Any

from benchmarks.command import make_parser, report, show_rows
from benchmarks.datasets.workloads import Workload, planned_orders
from benchmarks.ordering.online import Tail, replay
from benchmarks.ordering.plan import add_workload_arguments, workload_of
from ragboost.ordering import plan_batch
from ragboost.simulate import simulate
from research.improve import cluster_longer, orders_of

WINDOW = 64


def main() -> None:
    parser = make_parser(__doc__)
    add_workload_arguments(parser, contexts=1_000)
    parser.add_argument("--seconds", type=float, default=60.0, help="of the oracle's search")
    parser.add_argument("--capacity", type=int, help="tokens of the cache; default: unbounded")
    parser.add_argument("--tail", choices=("relevance", "popularity"), default="popularity")
    args = parser.parse_args()
    result = measure(
        workload_of(args), seconds=args.seconds, capacity=args.capacity, tail=args.tail
    )
    report(result, args, show)


def measure(
    workload: Workload, *, seconds: float, capacity: int | None = None, tail: Tail = "popularity"
) -> dict[str, Any]:
    """Compare the orders on one workload."""
    cpu = time.process_time()
    end = time.monotonic() + seconds
    oracle = cluster_longer(
        workload.contexts, workload.tokens, keep_improving=lambda: time.monotonic() < end
    )
    cpu_s = time.process_time() - cpu
    orders = {
        "plain": workload.contexts,
        "online": replay(workload, capacity, tail=tail, window=1)[0],
        f"window{WINDOW}": replay(workload, capacity, tail=tail, window=WINDOW)[0],
        "plan": planned_orders(workload, plan_batch(workload.contexts, workload.tokens)),
        "oracle": orders_of(oracle, workload.contexts),
    }
    rates = {
        name: simulate(sent, workload.tokens, capacity_tokens=capacity).hit_rate
        for name, sent in orders.items()
    }
    gain = rates["oracle"] - rates["plain"]
    shares = {
        name: round((rates[name] - rates["plain"]) / gain, 4) if gain else 1.0
        for name in ("online", f"window{WINDOW}", "plan")
    }
    return {
        "capacity": capacity,
        "seconds": seconds,
        "cpu_s": round(cpu_s, 1),
        "hit_rate": {name: round(rate, 4) for name, rate in rates.items()},
        "share": {workload.name: shares},
    }


def show(result: dict[str, Any]) -> None:
    ((workload, shares),) = result["share"].items()
    rows = [
        {"order": name, "hit rate": f"{rate:.3f}", "share": f"{shares.get(name, 1):.1%}"}
        for name, rate in result["hit_rate"].items()
        if name != "plain"
    ]
    show_rows(rows, f"{workload}: share of the oracle's gain over the plain order")


if __name__ == "__main__":
    main()
