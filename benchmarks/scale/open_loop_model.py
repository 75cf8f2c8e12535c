"""Simulate open-loop load on an engine with the product's own routing and waiting room.

    python -m benchmarks.scale.open_loop_model --json
    python -m benchmarks.scale.open_loop_model --workload neardup --arm plain --arm adaptive

A discrete-event simulation in virtual time: the same figures on every machine. The engine is that
of `benchmarks.scale.scheduling`. Load is relative to saturation, which is what the engine completes
of the plain requests from `--clients` clients that wait for each response. The TTFT bound of
goodput is TTFT_BOUND times the time that an idle engine takes for an average plain prompt.
"""

import argparse
import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.command import make_parser
from benchmarks.datasets.retrieval import load_data
from benchmarks.datasets.workloads import GENERATORS, Workload, generate
from benchmarks.scale.load_arms import Arrivals, arms, arrival_gaps, compare_rows, load_figures
from benchmarks.scale.scheduling import PREFILL_TOKENS_PER_S, Run, virtual_loop
from ragboost.ordering import plan_batch
from ragboost.plots import check_plot, line_plot

LOADS = (0.3, 0.6, 0.8, 0.9, 1.0, 1.1, 1.2)
TTFT_BOUND = 10.0
WARM_UP = 8  # unmeasured requests that find the engine idle
SHOWN = ("plain", "online", "adaptive")


class Model(NamedTuple):
    """A simulated setup.

    Attributes:
        workload: the requests.
        capacity_tokens: of the prefix cache.
        lanes: prompts computed concurrently, which share the rate.
        replicas: engines.
        clients: per engine, for measuring saturation.
        seed: of the arrivals.
    """

    workload: Workload
    capacity_tokens: int = 100_000
    lanes: int = 1
    replicas: int = 1
    clients: int = 32
    seed: int = 1

    def run(self, arm: Mapping[str, Any]) -> Run:
        """Return a run of an arm, which has not begun."""
        return Run(
            self.workload,
            dict(arm),
            replicas=self.replicas,
            lanes=self.lanes,
            capacity_tokens=self.capacity_tokens,
        )

    @property
    def mean_tokens(self) -> float:
        """Length of an average prompt."""
        tokens = self.workload.tokens
        return float(np.mean([sum(tokens[d] for d in c) for c in self.workload.contexts]))


def saturation(model: Model) -> float:
    """Return the plain requests per second that the engines complete for waiting clients."""
    with virtual_loop() as loop:
        run = model.run(arms()["plain"])
        work = run.closed(model.workload.contexts, clients=model.clients * model.replicas)
        loop.run_until_complete(work)
        run.dispatcher.close()
        loop.run_until_complete(asyncio.sleep(0))
        return len(model.workload.contexts) / run.responses[-1].first_token


def simulate_load(
    model: Model, arm: str, *, per_s: float, arrivals: Arrivals = "poisson"
) -> dict[str, float]:
    """Run one arm under one load; return `hit_rate`, `held_share` and `load_figures`."""
    contexts = model.workload.contexts
    if arm == "planned":
        plan = plan_batch(contexts, model.workload.tokens)
        contexts = [[contexts[i][j] for j in plan.permutations[i]] for i in plan.release_order]
    idle_s = 2 * model.mean_tokens / PREFILL_TOKENS_PER_S + 2
    gaps = arrival_gaps(len(contexts), per_s=per_s, arrivals=arrivals, seed=model.seed)
    gaps[:WARM_UP] = [idle_s] * WARM_UP
    with virtual_loop() as loop:
        run = model.run(arms()[arm])
        loop.run_until_complete(run.open(contexts, gaps))
        run.dispatcher.close()
        loop.run_until_complete(asyncio.sleep(0))
    engines = run.engines.values()
    measured = sorted(run.responses)[WARM_UP:]
    bound = TTFT_BOUND * model.mean_tokens / PREFILL_TOKENS_PER_S
    return {
        "hit_rate": round(
            sum(e.cached_tokens for e in engines) / sum(e.prompt_tokens for e in engines), 4
        ),
        "held_share": round(sum(how != "at_once" for how in run.releases) / len(run.releases), 4),
        **load_figures(measured, ttft_bound_s=bound),
    }


def sweep(
    model: Model,
    names: Sequence[str],
    *,
    loads: Sequence[float],
    processes: Sequence[Arrivals],
    progress: Callable[[str], None] = lambda _: None,
) -> list[dict[str, Any]]:
    """Simulate all arms under all loads."""
    full = saturation(model)
    rows = []
    for arrivals in processes:
        for load in loads:
            for name in names:
                progress(f"{model.workload.name}, {arrivals}, load {load:g}: {name}")
                figures = simulate_load(model, name, per_s=load * full, arrivals=arrivals)
                rows.append({"arrivals": arrivals, "load": load, "arm": name, **figures})
    return rows


def main() -> None:
    options = parse()
    if options.data:
        made = [load_data(options.data, retriever=options.retriever, k=options.k)]
        made = [
            made[0].__class__(made[0].name, made[0].contexts[: options.requests], made[0].tokens)
        ]
    else:
        names = options.workload or list(GENERATORS)
        made = [generate(name, options.requests, k=options.k, seed=options.seed) for name in names]
    results = []
    with Console(stderr=True).status("") as status:
        for workload in made:
            model = Model(
                workload,
                capacity_tokens=options.cache_tokens,
                lanes=options.lanes,
                replicas=options.replicas,
                clients=options.clients,
                seed=options.seed,
            )
            rows = sweep(
                model,
                options.arm or SHOWN,
                loads=options.load or LOADS,
                processes=options.arrivals or ("poisson", "bursts"),
                progress=status.update,
            )
            results.append({"workload": workload.name, "rows": rows, **compare_rows(rows)})
    if options.plot:
        plot(options.plot, results[0])
    if options.json:
        print(json.dumps({"simulation": True, **settings_of(options), "results": results}))
    else:
        show(results)


def parse() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--workload", choices=tuple(GENERATORS), action="append")
    parser.add_argument("--data", type=Path, help="folder of a retrieval workload instead")
    parser.add_argument("--retriever", default="dense")
    parser.add_argument("--requests", type=int, default=600, help="requests per run")
    parser.add_argument("--k", type=int, default=15, help="documents per request")
    parser.add_argument("--arm", choices=tuple(arms()), action="append", help="default: three")
    parser.add_argument("--load", type=float, action="append", help="share of saturation")
    parser.add_argument("--arrivals", choices=("poisson", "bursts"), action="append")
    parser.add_argument("--cache-tokens", type=int, default=100_000)
    parser.add_argument("--lanes", type=int, default=1, help="prompts computed concurrently")
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--clients", type=int, default=32, help="of saturation, per engine")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--plot", type=Path, metavar="F.svg", help="goodput over load")
    options = parser.parse_args()
    if options.plot:
        check_plot(options.plot)
    return options


def settings_of(options: argparse.Namespace) -> dict[str, Any]:
    """Return the options that figures depend on."""
    names = ("requests", "k", "cache_tokens", "lanes", "replicas", "clients", "seed")
    return {name: getattr(options, name) for name in names}


def plot(path: Path, result: Mapping[str, Any]) -> None:
    """Draw goodput over load."""
    rows = result["rows"]
    first = rows[0]["arrivals"]
    lines = {
        arm: [
            (row["load"], row["goodput_per_s"])
            for row in rows
            if row["arm"] == arm and row["arrivals"] == first
        ]
        for arm in dict.fromkeys(row["arm"] for row in rows)
    }
    line_plot(
        path,
        lines,
        x_label="offered load, relative to plain saturation",
        y_label="requests per second within the TTFT bound",
        title=f"{result['workload']} ({first})",
    )


def show(results: Sequence[Mapping[str, Any]]) -> None:
    console = Console()
    for result in results:
        table = Table(*result["rows"][0], title=f"{result['workload']}, simulated")
        for row in result["rows"]:
            table.add_row(*(str(value) for value in row.values()))
        console.print(table)
        console.print({name: value for name, value in result.items() if name != "rows"})


if __name__ == "__main__":
    main()
