"""Measure scheduling under open-loop load, on a real engine or in a simulation: TTFT, goodput.

    python -m benchmarks.scale.open_loop --engine simulated --workload neardup --json
    python -m benchmarks.scale.open_loop --engine vllm --data PATH --json
    python -m benchmarks.scale.open_loop --engine embedded --data PATH --requests 40 --load 0.9 \\
        --arm plain --arm online --arm adaptive

A real engine gets a fresh proxy and an empty cache for each run. Saturation is measured first: the
plain requests per second that `--saturation-clients` clients get which wait for each response. Then
each arm gets the same requests at the same times, at each share of saturation, from a driver
process of its own, `--repeats` times with other times, all arms in turn; `--clients N` adds closed
loops. The TTFT bound of goodput is TTFT_BOUND times the median TTFT of plain requests that find the
engine idle. Each run begins with WARM_UP unmeasured requests, one at a time.

The simulation (`simulated_load`) is in virtual time: the same figures on every machine.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.command import make_parser, report
from benchmarks.datasets.workloads import GENERATORS
from benchmarks.engines.end_to_end import MAX_MODEL_LEN, load
from benchmarks.engines.replays import completion
from benchmarks.engines.served import proxied
from benchmarks.scale.load import (
    ARMS,
    LOADS,
    SHOWN,
    TTFT_BOUND,
    WARM_UP,
    Response,
    arrival_gaps,
    compare_rows,
    load_figures,
    show,
)
from benchmarks.scale.simulated_load import simulate
from ragboost.booster.booster import Booster
from ragboost.types import Request
from scripts.processes import exit_on_sigterm
from tests.engines.servers import EngineServer, missing

Lines = list[dict[str, Any]]


class Bench:
    """The engine and the requests of all runs, the measured ones behind the unmeasured ones."""

    def __init__(
        self, server: EngineServer, requests: Sequence[Request], options: argparse.Namespace
    ) -> None:
        self._server = server
        self._warm, self._requests = requests[:WARM_UP], requests[WARM_UP:]
        self._options = options
        self.bound_s = 0.0

    def saturation(self) -> float:
        """Return the plain requests per second of a closed loop, and learn the TTFT bound."""
        with self._proxy("plain") as url:
            alone = self._drive(url, self._lines(self._warm, boost=False), clients=1)
            self.bound_s = TTFT_BOUND * statistics.median(
                line["first_token"] - line["arrived"] for line in alone
            )
            lines = self._lines(self._requests, boost=False)
            results = self._drive(url, lines, clients=self._options.saturation_clients)
        return len(results) / float(max(line["first_token"] for line in results))

    def run(self, arm: str, gaps: Sequence[float], *, clients: int = 0) -> dict[str, float]:
        """Measure one arm; with `clients`, in a closed loop."""
        with self._proxy(arm) as url:
            boost = arm not in ("plain", "planned")
            self._drive(url, self._lines(self._warm, boost=boost), clients=1)
            lines = (
                self._planned() if arm == "planned" else self._lines(self._requests, boost=boost)
            )
            for line, gap in zip(lines, gaps, strict=True):
                line["gap_s"] = gap
            results = self._drive(url, lines, clients=clients)
        responses = sorted(Response(line["arrived"], line["first_token"]) for line in results)
        prompt = sum(line["prompt_tokens"] for line in results)
        return {
            "hit_rate": round(sum(line["cached_tokens"] for line in results) / prompt, 4),
            "requests_per_s": round(len(results) / max(r.first_token for r in responses), 4),
            **load_figures(responses, ttft_bound_s=self.bound_s),
        }

    @contextmanager
    def _proxy(self, arm: str) -> Iterator[str]:
        with proxied([self._server], {"backend": {"url": self._server.url}, **ARMS[arm]}) as url:
            yield url

    def _lines(self, requests: Sequence[Request], *, boost: bool) -> Lines:
        return [self._line(completion(request, boost=boost)) for request in requests]

    def _planned(self) -> Lines:
        plan = Booster().boost_batch(self._requests)
        return [self._line({"prompt": context.render()}) for context in plan.contexts]

    def _line(self, body: dict[str, Any]) -> dict[str, Any]:
        fixed = {"model": "tiny", "max_tokens": self._options.answer_tokens}
        return {"gap_s": 0.0, "body": {**fixed, **body}}

    def _drive(self, url: str, lines: Lines, *, clients: int) -> Lines:
        with tempfile.TemporaryDirectory() as folder:
            plan, out = Path(folder) / "plan.jsonl", Path(folder) / "out.jsonl"
            plan.write_text("".join(json.dumps(line) + "\n" for line in lines))
            command = [sys.executable, "-m", "benchmarks.scale.driver", str(plan), str(out)]
            command += ["--url", url, "--clients", str(clients)]
            subprocess.run(command, check=True)
            results = [json.loads(line) for line in out.read_text().splitlines()]
        if errors := [line["error"] for line in results if line["error"]]:
            raise RuntimeError(f"{len(errors)} of {len(results)} requests failed: {errors[0]}")
        return results


def main() -> None:
    options = parse()
    exit_on_sigterm()
    if options.engine == "simulated":
        result = simulate(options)
        results = result["results"]
    else:
        result = serve(options)
        results = [result]
    report(result, options, lambda _: show(results))


def serve(options: argparse.Namespace) -> dict[str, Any]:
    """Start the engine and measure all arms on it."""
    loaded = load(options)
    requests = loaded.requests[: options.requests + WARM_UP]
    server = EngineServer(
        options.engine,
        cache_tokens=options.cache_tokens,
        max_model_len=MAX_MODEL_LEN,
        shape=options.model,
    )
    with server:
        bench = Bench(server, requests, options)
        full = bench.saturation()
        rows = measure(bench, full, len(requests) - WARM_UP, options)
    return {
        "engine": options.engine,
        "workload": loaded.workload.name,
        "corpus": options.corpus,
        "k": max(map(len, loaded.workload.contexts)),
        "requests": len(requests) - WARM_UP,
        "cache_tokens": options.cache_tokens,
        "seed": options.seed,
        "saturation_per_s": round(full, 4),
        "ttft_bound_s": round(bench.bound_s, 3),
        "rows": rows,
        **compare_rows([row for row in rows if row["arrivals"] != "closed"]),
    }


def measure(
    bench: Bench, full: float, count: int, options: argparse.Namespace
) -> list[dict[str, Any]]:
    """Measure all arms under all loads; figures are medians over repeats, each with all arms."""
    runs: list[tuple[Any, float]] = [
        (arrivals, load) for arrivals in options.arrivals for load in options.load
    ]
    runs += [("closed", float(clients)) for clients in options.clients]
    rows, started, console = [], time.monotonic(), Console(stderr=True)
    for arrivals, amount in runs:
        repeats: dict[str, list[dict[str, float]]] = {arm: [] for arm in options.arm}
        for seed in range(options.seed, options.seed + options.repeats):
            clients, gaps = int(amount), [0.0] * count
            if arrivals != "closed":
                clients, per_s = 0, amount * full
                gaps = arrival_gaps(count, per_s=per_s, arrivals=arrivals, seed=seed)
            for arm in options.arm:
                repeats[arm].append(bench.run(arm, gaps, clients=clients))
                console.print(f"{time.monotonic() - started:.0f} s: {arm} {repeats[arm][-1]}")
        for arm, figures in repeats.items():
            rows.append({"arrivals": arrivals, "load": amount, "arm": arm, **medians(figures)})
            if options.repeats > 1:
                rows[-1]["repeats"] = figures
    return rows


def medians(repeats: Sequence[dict[str, float]]) -> dict[str, float]:
    """Return the median of each figure."""
    return {name: statistics.median(each[name] for each in repeats) for name in repeats[0]}


def parse() -> argparse.Namespace:
    """Parse the command line; exit with an error if the engine is not installed."""
    parser = make_parser(__doc__)
    parser.add_argument(
        "--engine", choices=["simulated", "vllm", "sglang", "embedded"], required=True
    )
    parser.add_argument("--data", type=Path, help="folder of a retrieval workload")
    parser.add_argument("--retriever", help="default: native if present, else dense")
    parser.add_argument("--requests", type=int, help="per run; default: 200, simulated 600")
    parser.add_argument("--k", type=int, help="documents per request; default: 10, simulated 15")
    parser.add_argument("--arm", choices=tuple(ARMS), action="append", help="default: three")
    parser.add_argument("--load", type=float, action="append", help="share of saturation")
    parser.add_argument("--arrivals", choices=("poisson", "bursts"), action="append")
    parser.add_argument("--saturation-clients", type=int, default=32, help="per engine")
    parser.add_argument("--cache-tokens", type=int, default=100_000, help="prefix cache size")
    parser.add_argument("--seed", type=int, default=1, help="of the first repeat's arrivals")
    real = parser.add_argument_group("real engines")
    real.add_argument("--corpus", choices=["padded", "extracts"], default="extracts")
    real.add_argument("--clients", type=int, action="append", default=[], help="closed loops")
    real.add_argument("--answer-tokens", type=int, default=1)
    real.add_argument("--model", choices=["tiny", "wide", "deep"], default="tiny")
    real.add_argument("--repeats", type=int, default=1, help="runs of each arm, in turn")
    simulated = parser.add_argument_group("simulation")
    simulated.add_argument("--workload", choices=tuple(GENERATORS), action="append")
    simulated.add_argument("--lanes", type=int, default=1, help="prompts computed concurrently")
    simulated.add_argument("--replicas", type=int, default=1)
    options = parser.parse_args()
    if options.engine == "simulated":
        options.requests = options.requests or 600
        return options
    options.requests = options.requests or 200
    options.arm = options.arm or list(SHOWN)
    options.arrivals = options.arrivals or ["poisson"]
    if options.load is None:
        options.load = [] if options.clients else list(LOADS)
    if reason := missing(options.engine) or (None if options.data else "--data is missing"):
        parser.error(reason)
    if options.model != "tiny" and options.engine == "embedded":
        parser.error("--model applies to vLLM and SGLang; the embedded engine has a built-in model")
    return options


if __name__ == "__main__":
    main()
