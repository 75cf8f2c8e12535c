"""Measure time to first token and throughput of chunk reuse by request rate (FusionRAG Fig. 15).

    OMP_NUM_THREADS=1 python -m benchmarks.chunks.rates --json

The documents and the random model of `chunks.end_to_end`, one embedded engine behind a proxy.
`full`: the client writes the prompt, the engine has its exact prefix cache. The other arms are
policies, which reuse documents that earlier requests left. Requests arrive in an open loop, by a
Poisson process whose rate is a share of what full prefill can serve: the inverse of its median time
to first token alone. Each arm gets the same requests at the same times.

`ttft_s` is the mean from arrival to first token, in seconds of wall time: run it on a quiet machine
or compare only within a load. `completed_per_s` counts first tokens until the last one.
"""

import argparse
import json
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.chunks.end_to_end import build_model, draw, request_body
from benchmarks.chunks.served import Answer, Served, serve
from benchmarks.scale.load_arms import arrival_gaps
from ragboost.config import EngineSettings
from ragboost.demo.workload import WorkloadTurn

FULL = "full"
ALONE = 4  # requests that measure full prefill alone


def body(turn: WorkloadTurn, arm: str, ratio: float) -> dict[str, Any]:
    """Return a request for one token."""
    if arm == FULL:
        return {**request_body(turn, "plain", ratio), "max_tokens": 1}
    asked = {**request_body(turn, "approx", ratio), "max_tokens": 1}
    asked["ragboost"]["reuse"]["policy"] = arm
    return asked


def drive(
    served: Served, turns: Sequence[WorkloadTurn], gaps: Sequence[float], arm: str, ratio: float
) -> dict[str, float]:
    """Send the requests, each at its time, and return the figures of the run."""
    served.engine.reset_prefix_cache().result(60)
    answers: list[Answer] = []
    begin = due = time.perf_counter()

    def ask(asked: dict[str, Any]) -> None:
        answers.append(served.ask(asked))

    threads = []
    for turn, gap in zip(turns, gaps, strict=True):
        due += gap
        time.sleep(max(0.0, due - time.perf_counter()))
        threads.append(threading.Thread(target=ask, args=(body(turn, arm, ratio),)))
        threads[-1].start()
    for thread in threads:
        thread.join()
    took = time.perf_counter() - begin
    if len(answers) != len(turns):
        raise RuntimeError(f"{len(turns) - len(answers)} of {len(turns)} requests failed")
    total = sum(answer.usage["prompt_tokens"] for answer in answers)
    reused = sum(answer.sources["approx_cached"] for answer in answers)
    return {
        "ttft_s": round(statistics.fmean(answer.ttft_ms for answer in answers) / 1000, 3),
        "completed_per_s": round(len(turns) / took, 3),
        "reused_share": round(reused / total, 3),
    }


def measure(model: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Store all documents, measure full prefill alone, then each arm at each load."""
    turns = draw(args.requests, k=args.k, corpus=args.corpus, seed=3)
    known = draw(args.corpus // 2, k=args.k, corpus=args.corpus, seed=4)
    settings = EngineSettings(model=model, num_threads=1, capacity_tokens=args.capacity_tokens)
    rows = []
    with serve(settings) as served:
        for turn in known:
            served.ask(body(turn, args.arms[-1], args.ratio))
        alone = []
        for turn in known[:ALONE]:
            served.engine.reset_prefix_cache().result(60)
            alone.append(served.ask(body(turn, FULL, args.ratio)).ttft_ms / 1000)
        per_s = 1 / statistics.median(alone)
        for load in args.loads:
            gaps = arrival_gaps(len(turns), per_s=load * per_s, arrivals="poisson", seed=1)
            for arm in (FULL, *args.arms):
                found = drive(served, turns, gaps, arm, args.ratio)
                rows.append({"load": load, "per_s": round(load * per_s, 3), "arm": arm} | found)
                print(rows[-1], file=sys.stderr, flush=True)
    return {"alone_s": round(1 / per_s, 3), "requests": len(turns), "rows": rows}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--arms", default="cacheblend,fusionrag,gradual", help="policies")
    parser.add_argument("--loads", default="0.5,1,1.5,2", help="shares of what full can serve")
    parser.add_argument("--requests", type=int, default=20, help="requests per arm and load")
    parser.add_argument("--corpus", type=int, default=24, help="documents in the corpus")
    parser.add_argument("--k", type=int, default=6, help="documents per request")
    parser.add_argument("--layers", type=int, default=16, help="layers of the random model")
    parser.add_argument("--ratio", type=float, default=0.15, help="recompute ratio")
    parser.add_argument("--capacity-tokens", type=int, default=32_768, help="prefix cache size")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    args.arms = args.arms.split(",")
    args.loads = [float(load) for load in args.loads.split(",")]
    with tempfile.TemporaryDirectory() as folder:
        build_model(Path(folder), layers=args.layers)
        result = measure(Path(folder), args) | {"ratio": args.ratio, "layers": args.layers}
    print(json.dumps(result) if args.json else json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
