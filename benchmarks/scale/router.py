"""Measure routing in virtual time: token hit rate, TTFT, and the router's own processor time.

    python -m benchmarks.scale.router --engines 1,4,16,64,256 --json
    python -m benchmarks.scale.router --workload zipf --requests 300 --load half --load "64 clients"
    python -m benchmarks.scale.router --data FOLDER

The simulation is that of `simulated_load`. All else is equal in all arms: `cache_aware` is the
product's, `least_loaded` its other policy, the next ones are what other routers do
(`held_policies`), and `pooled` is one engine with the cache of all, without any load: a bound.
"""

import argparse
import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from benchmarks.command import make_parser, report, show_rows
from benchmarks.datasets.retrieval import load_data
from benchmarks.datasets.workloads import GENERATORS, Workload, generate
from benchmarks.scale.held_policies import POLICIES
from benchmarks.scale.load import arrival_gaps
from benchmarks.scale.simulated_load import Run
from ragboost.proxy.routing.admission import Admission
from tests.fakes.virtual_time import CAPACITY_TOKENS, PREFILL_TOKENS_PER_S, virtual_loop

POPULARITY = {"ordering": {"tail": "popularity"}, "waiting_room": {"mode": "off"}}
ARMS: dict[str, dict[str, Any]] = {
    "least_loaded": {**POPULARITY, "router": {"policy": "least_loaded"}},
    "cache_aware": POPULARITY,
    **dict.fromkeys(POLICIES, POPULARITY),
}
POOLED = "pooled"
REQUESTS_PER_ENGINE = 40
# Request rate as a share of the uncached capacity of one engine; None: 64 closed-loop clients per
# engine.
LOADS: dict[str, float | None] = {"half": 0.5, "full": 1.0, "64 clients": None}


def measure(
    workload: Workload,
    arm: str,
    *,
    load: float | None,
    replicas: int = 1,
    lanes: int = 1,
    seed: int = 1,
    settings: dict[str, Any] | None = None,
) -> dict[str, float]:
    """Run one arm; return `hit_rate`, TTFT (`ttft_mean_s`, `p99_ttft_s`), `duration_s`,
    `smallest_share`: prompt tokens of the least loaded engine, relative to an equal share, and
    `dispatch_us_p50`: median processor time to choose an engine.

    Args:
        settings: instead of the arm's.
    """
    with virtual_loop() as loop:
        run = Run(workload, settings or ARMS[arm], replicas=replicas, lanes=lanes)
        router = run.dispatcher.router
        place = POLICIES[arm](router).place if arm in POLICIES else router.place
        spent: list[int] = []

        async def timed(admission: Admission) -> None:
            started = time.thread_time_ns()
            await place(admission)
            spent.append(time.thread_time_ns() - started)

        assign = run.dispatcher.assign

        def timed_assignment(admission: Admission) -> None:
            started = time.thread_time_ns()
            assign(admission)
            spent.append(time.thread_time_ns() - started)

        router.place = timed  # type: ignore[method-assign]
        run.dispatcher.assign = timed_assignment  # type: ignore[method-assign]
        if load is None:
            work = run.closed(workload.contexts, clients=64 * replicas)
        else:
            mean = np.mean([sum(workload.tokens[d] for d in c) for c in workload.contexts])
            per_s = load * replicas * PREFILL_TOKENS_PER_S / float(mean)
            gaps = arrival_gaps(len(workload.contexts), per_s=per_s, arrivals="poisson", seed=seed)
            work = run.open(workload.contexts, gaps)
        loop.run_until_complete(work)
        run.dispatcher.close()
        loop.run_until_complete(asyncio.sleep(0))
        duration_s = loop.time()
    engines = run.engines.values()
    cached, prompt = sum(e.cached_tokens for e in engines), sum(e.prompt_tokens for e in engines)
    shares = [e.prompt_tokens / prompt for e in engines]
    return {
        "hit_rate": round(cached / prompt, 4),
        "ttft_mean_s": round(float(np.mean(run.ttft)), 3),
        "p99_ttft_s": round(float(np.percentile(run.ttft, 99)), 3),
        "duration_s": round(duration_s, 1),
        "smallest_share": round(min(shares) * replicas, 3),
        "dispatch_us_p50": round(float(np.median(spent)) / 1000, 1),
    }


def pooled_hit_rate(workload: Workload, *, engines: int) -> float:
    """Return the hit rate of one engine with the cache of all, one request after another."""
    with virtual_loop() as loop:
        capacity = engines * CAPACITY_TOKENS
        run = Run(workload, POPULARITY, replicas=1, lanes=1, capacity_tokens=capacity)
        loop.run_until_complete(run.closed(workload.contexts, clients=1))
        run.dispatcher.close()
        loop.run_until_complete(asyncio.sleep(0))
    (engine,) = run.engines.values()
    return round(engine.cached_tokens / engine.prompt_tokens, 4)


def compare(args: argparse.Namespace, progress: Callable[[str], None]) -> list[dict[str, Any]]:
    """Measure all arms on all workloads, with all numbers of engines, under all loads."""
    rows = []
    for engines in args.engines:
        num = max(args.requests, REQUESTS_PER_ENGINE * engines)
        workloads = [generate(name, num, seed=args.seed) for name in args.workload or ()]
        if args.data is not None:
            workloads.append(load_data(args.data, retriever=args.retriever))
        elif not args.workload:
            workloads = [generate(name, num, seed=args.seed) for name in GENERATORS]
        for workload in workloads:
            for load in args.load or ("full",):
                for arm in args.arm or ARMS:
                    progress(f"{workload.name}, {engines} engines, {load}: {arm}")
                    figures = measure(
                        workload,
                        arm,
                        load=LOADS[load],
                        replicas=engines,
                        lanes=args.lanes,
                        seed=args.seed,
                    )
                    row = {"workload": workload.name, "engines": engines, "load": load}
                    rows.append({**row, "policy": arm, **figures})
            if not args.arm:
                hit_rate = pooled_hit_rate(workload, engines=engines)
                row = {"workload": workload.name, "engines": engines, "load": "none"}
                rows.append({**row, "policy": POOLED, "hit_rate": hit_rate})
    return rows


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument(
        "--workload", choices=tuple(GENERATORS), action="append", help="workloads to run"
    )
    parser.add_argument("--data", type=Path, help="folder of retrieval runs, as another workload")
    parser.add_argument("--retriever", default="dense", help="of --data")
    parser.add_argument(
        "--requests", type=int, default=1500, help="per workload; at least 40 per engine are sent"
    )
    parser.add_argument("--engines", type=_numbers, default=[4], help="for example 1,4,16,64,256")
    parser.add_argument("--load", choices=tuple(LOADS), action="append", help="default: full")
    parser.add_argument("--arm", choices=tuple(ARMS), action="append", help="default: all, pooled")
    parser.add_argument("--lanes", type=int, default=1, help="prompts prefilled concurrently")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    with Console(stderr=True).status("") as status:
        rows = compare(args, status.update)
    report(
        {"lanes": args.lanes, "router": rows},
        args,
        lambda result: show_rows([{**rows[0], **_EMPTY, **row} for row in result["router"]]),
    )


_EMPTY = dict.fromkeys(
    ("ttft_mean_s", "p99_ttft_s", "duration_s", "smallest_share", "dispatch_us_p50"), ""
)


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


if __name__ == "__main__":
    main()
