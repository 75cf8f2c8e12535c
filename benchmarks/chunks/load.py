"""Measure time and throughput of chunk reuse under load, through proxy and embedded engine.

    python -m benchmarks.chunks.load closed --data PATH --json
    OMP_NUM_THREADS=1 python -m benchmarks.chunks.load open --json

`closed` (Cache-Craft Fig. 22): the first requests of a retrieval workload, from an empty cache;
`--at-once` clients each send the next request when theirs is answered. Nothing is reordered, and
both arms send the same requests: `prefix`, prefix caching alone; `0.15`, also the KV of documents
that earlier requests computed at other places, with this share recomputed. `computed` counts all
tokens that the engine computed, recomputed ones included. `--warm` requests come first, unmeasured.

`open` (FusionRAG Fig. 15): questions about Python's documentation arrive by a Poisson process whose
rate is a share of what full prefill can serve: the inverse of its median time to first token alone.
`full`: the client writes the prompt, the engine has its exact prefix cache; the other arms are
policies, which reuse documents that earlier requests left. Each arm gets the same requests at the
same times. `completed_per_s` counts first tokens until the last one.

Models are random, so answers are meaningless. Times are means of wall time: run it on a quiet
machine or compare only within a load.
"""

import argparse
import json
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.chunks.served import AS_SENT, Served, build_model, draw, request_body, serve
from benchmarks.command import make_parser
from benchmarks.datasets.retrieval import load_requests
from benchmarks.scale.load import arrival_gaps
from ragboost.chunk_cache.selection import DEFAULT_POLICY
from ragboost.config import EngineSettings
from ragboost.demo.workload import WorkloadTurn
from scripts.http_client import SOURCES, Answer

FULL = "full"
ALONE = 4  # requests that measure full prefill alone


def bodies(args: argparse.Namespace, reuse: Any) -> list[dict[str, Any]]:
    """Return the requests of the workload."""
    system = {"role": "system", "content": "Answer from the documents, briefly."}
    _, requests = load_requests(args.data, retriever=args.retriever, k=args.k, corpus=args.corpus)
    return [
        {
            "messages": [system, {"role": "user", "content": request.query}],
            "max_tokens": args.new_tokens,
            "ignore_eos": True,
            "ragboost": {
                "documents": [{"text": d.text} for d in request.documents],
                "reuse": reuse,
            },
        }
        for request in requests[: args.warm + args.requests]
    ]


def run_arm(model: Path, requests: Sequence[dict[str, Any]], args: argparse.Namespace) -> Any:
    """Serve the requests from an empty cache, and return the figures."""
    settings = EngineSettings(model=model, num_threads=1, capacity_tokens=args.capacity_tokens)
    with serve(settings, AS_SENT) as served, ThreadPoolExecutor(args.at_once) as pool:

        def ask(body: dict[str, Any]) -> tuple[Answer, float]:
            begin = time.perf_counter()
            answer = served.ask(body)
            return answer, time.perf_counter() - begin

        list(pool.map(ask, requests[: args.warm]))
        begin, cpu = time.perf_counter(), time.process_time()
        found = list(pool.map(ask, requests[args.warm :]))
        seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu
    tokens = {name: sum(answer.sources[name] for answer, _ in found) for name in SOURCES}
    return {
        "prompt_tokens": sum(tokens.values()),
        "tokens": tokens,
        "computed": tokens["computed"] + tokens["recomputed"],
        "requests_per_s": round(len(found) / seconds, 3),
        "requests_per_cpu_s": round(len(found) / cpu, 3),
        "latency_s": round(statistics.fmean(time for _, time in found), 2),
        "ttft_s": round(statistics.fmean(answer.ttft_s for answer, _ in found), 2),
    }


def measure_closed(model: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Serve every arm, one after another."""
    arms: dict[str, Any] = {"prefix": "exact"}
    arms |= {f"{ratio:g}": {"policy": DEFAULT_POLICY, "ratio": ratio} for ratio in args.ratios}
    found = {}
    for name, reuse in arms.items():
        found[name] = run_arm(model, bodies(args, reuse), args)
        print(f"{name}: {found[name]}", file=sys.stderr)
    alone = found["prefix"]

    def gain(arm: dict[str, Any], name: str) -> float:
        return round(arm[name] / alone[name], 2)

    over_prefix = {
        name: {
            "fewer_tokens": round(1 - arm["computed"] / alone["computed"], 3),
            "throughput": gain(arm, "requests_per_s"),
            "throughput_per_cpu_s": gain(arm, "requests_per_cpu_s"),
            "latency": round(alone["latency_s"] / arm["latency_s"], 2),
        }
        for name, arm in found.items()
        if name != "prefix"
    }
    shape = {name: getattr(args, name) for name in ("requests", "warm", "k", "layers", "at_once")}
    named = {"data": args.data.name, **shape, "policy": DEFAULT_POLICY}
    return {**named, **found, "over_prefix": over_prefix}


def first_token(turn: WorkloadTurn, arm: str, ratio: float) -> dict[str, Any]:
    """Return a request for one token."""
    body = {**request_body(turn, "plain" if arm == FULL else "approx", ratio), "max_tokens": 1}
    if arm != FULL:
        body["ragboost"]["reuse"]["policy"] = arm
    return body


def drive(
    served: Served, turns: Sequence[WorkloadTurn], gaps: Sequence[float], arm: str, ratio: float
) -> dict[str, float]:
    """Send the requests, each at its time, and return the figures of the run."""
    served.engine.reset_prefix_cache().result(60)
    answers: list[Answer] = []
    begin = due = time.perf_counter()
    threads = []
    for turn, gap in zip(turns, gaps, strict=True):
        due += gap
        time.sleep(max(0.0, due - time.perf_counter()))
        body = first_token(turn, arm, ratio)
        threads.append(threading.Thread(target=lambda b=body: answers.append(served.ask(b))))
        threads[-1].start()
    for thread in threads:
        thread.join()
    took = time.perf_counter() - begin
    if len(answers) != len(turns):
        raise RuntimeError(f"{len(turns) - len(answers)} of {len(turns)} requests failed")
    total = sum(answer.prompt_tokens for answer in answers)
    reused = sum(answer.sources["reused"] for answer in answers)
    return {
        "ttft_s": round(statistics.fmean(answer.ttft_s for answer in answers), 3),
        "completed_per_s": round(len(turns) / took, 3),
        "reused_share": round(reused / total, 3),
    }


def measure_open(model: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Store all documents, measure full prefill alone, then each arm at each load."""
    turns = draw(args.requests, k=args.k, corpus=args.corpus, seed=3)
    earlier = draw(args.corpus // 2, k=args.k, corpus=args.corpus, seed=4)
    settings = EngineSettings(model=model, num_threads=1, capacity_tokens=args.capacity_tokens)
    rows = []
    with serve(settings) as served:
        for turn in earlier:
            served.ask(first_token(turn, args.arms[-1], args.ratio))
        alone = []
        for turn in earlier[:ALONE]:
            served.engine.reset_prefix_cache().result(60)
            alone.append(served.ask(first_token(turn, FULL, args.ratio)).ttft_s)
        per_s = 1 / statistics.median(alone)
        for load in args.loads:
            gaps = arrival_gaps(len(turns), per_s=load * per_s, arrivals="poisson", seed=1)
            for arm in (FULL, *args.arms):
                figures = drive(served, turns, gaps, arm, args.ratio)
                rows.append({"load": load, "per_s": round(load * per_s, 3), "arm": arm} | figures)
                print(rows[-1], file=sys.stderr, flush=True)
    return {
        "alone_s": round(1 / per_s, 3),
        "requests": len(turns),
        "rows": rows,
        "ratio": args.ratio,
        "layers": args.layers,
    }


def _words(text: str) -> list[str]:
    return text.split(",")


def _numbers(text: str) -> list[float]:
    return [float(number) for number in text.split(",")]


def main() -> None:
    parser = make_parser(__doc__)
    loops = parser.add_subparsers(dest="loop", required=True)
    closed = loops.add_parser("closed", help="clients that wait for their answers")
    closed.add_argument("--data", type=Path, required=True, help="folder of a retrieval workload")
    closed.add_argument("--retriever", default="dense", help="its list")
    closed.add_argument("--corpus", choices=["padded", "extracts"], default="padded")
    closed.add_argument("--k", type=int, default=5, help="documents per request")
    closed.add_argument("--requests", type=int, default=60, help="measured requests")
    closed.add_argument("--warm", type=int, default=20, help="unmeasured requests before them")
    closed.add_argument("--ratios", type=float, nargs="+", default=[0.15, 0.3], help="recomputed")
    closed.add_argument("--at-once", type=int, default=4, help="clients")
    closed.add_argument("--layers", type=int, default=12, help="layers of the random model")
    closed.add_argument("--new-tokens", type=int, default=8, help="tokens of an answer")
    closed.add_argument("--capacity-tokens", type=int, default=65_536, help="prefix cache size")
    rates = loops.add_parser("open", help="requests that arrive at a rate")
    rates.add_argument(
        "--arms", type=_words, default="cacheblend,fusionrag,gradual", help="policies"
    )
    rates.add_argument(
        "--loads", type=_numbers, default="0.5,1,1.5,2", help="shares of what full can serve"
    )
    rates.add_argument("--requests", type=int, default=20, help="requests per arm and load")
    rates.add_argument("--corpus", type=int, default=24, help="documents in the corpus")
    rates.add_argument("--k", type=int, default=6, help="documents per request")
    rates.add_argument("--layers", type=int, default=16, help="layers of the random model")
    rates.add_argument("--ratio", type=float, default=0.15, help="recompute ratio")
    rates.add_argument("--capacity-tokens", type=int, default=32_768, help="prefix cache size")
    for loop in (closed, rates):  # behind the name of the loop, too
        loop.add_argument("--json", action="store_true", default=argparse.SUPPRESS)
    args = parser.parse_args()
    measure = {"closed": measure_closed, "open": measure_open}[args.loop]
    with tempfile.TemporaryDirectory() as folder:
        build_model(Path(folder), layers=args.layers)
        result = measure(Path(folder), args)
    print(json.dumps(result, indent=None if args.json else 2))


if __name__ == "__main__":
    main()
