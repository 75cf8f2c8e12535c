"""Measure cache-aware routing in virtual time: TTFT and token hit rate.

    python -m benchmarks.scale.router --json
    python -m benchmarks.scale.router --workload zipf --requests 300

The simulation is that of `simulated_load`, with several engines. All else is equal in all arms.
"""

import argparse
import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
from rich.console import Console

from benchmarks.command import make_parser, report, show_rows
from benchmarks.datasets.workloads import GENERATORS, Workload, generate
from benchmarks.scale.load import arrival_gaps
from benchmarks.scale.simulated_load import Run
from tests.fakes.virtual_time import PREFILL_TOKENS_PER_S, virtual_loop

POPULARITY = {"ordering": {"tail": "popularity"}, "waiting_room": {"mode": "off"}}
ARMS: dict[str, dict[str, Any]] = {
    "least_loaded": {**POPULARITY, "router": {"policy": "least_loaded"}},
    "cache_aware": POPULARITY,
    "cache_aware, running_tokens 0": {**POPULARITY, "router": {"running_tokens": 0}},
    "cache_aware, running_tokens 2048": {**POPULARITY, "router": {"running_tokens": 2048}},
}
# Request rate as a share of the uncached capacity of one engine; None: 64 closed-loop clients per
# engine.
LOADS: dict[str, float | None] = {"half": 0.5, "full": 1.0, "64 clients": None}


def measure(
    workload: Workload,
    arm: dict[str, Any],
    *,
    load: float | None,
    replicas: int = 1,
    lanes: int = 1,
    seed: int = 1,
) -> dict[str, float]:
    """Run one arm; return `hit_rate`, TTFT (`ttft_mean_s`, `ttft_p99_s`), `duration_s` and
    `smallest_share`: prompt tokens of the least loaded engine, relative to an equal share."""
    with virtual_loop() as loop:
        run = Run(workload, arm, replicas=replicas, lanes=lanes)
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
        "ttft_p99_s": round(float(np.percentile(run.ttft, 99)), 3),
        "duration_s": round(duration_s, 1),
        "smallest_share": round(min(shares) * replicas, 3),
    }


def compare(args: argparse.Namespace, progress: Callable[[str], None]) -> list[dict[str, Any]]:
    """Measure all arms on all workloads under all loads."""
    rows = []
    for name in args.workload or GENERATORS:
        workload = generate(name, args.requests, seed=args.seed)
        for load, share in LOADS.items():
            for arm, settings in ARMS.items():
                progress(f"{name}, {load}: {arm}")
                figures = measure(
                    workload,
                    settings,
                    load=share,
                    replicas=args.replicas,
                    lanes=args.lanes,
                    seed=args.seed,
                )
                rows.append({"workload": name, "load": load, "arm": arm, **figures})
    return rows


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument(
        "--workload", choices=tuple(GENERATORS), action="append", help="workloads to run"
    )
    parser.add_argument("--requests", type=int, default=1500, help="requests per workload")
    parser.add_argument("--replicas", type=int, default=4, help="engines behind the router")
    parser.add_argument("--lanes", type=int, default=1, help="prompts prefilled concurrently")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    with Console(stderr=True).status("") as status:
        rows = compare(args, status.update)
    result = {"requests": args.requests, "lanes": args.lanes, "router": rows}
    report(result, args, lambda result: show_rows(result["router"]))


if __name__ == "__main__":
    main()
