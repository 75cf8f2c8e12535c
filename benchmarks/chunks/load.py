"""Measure computed tokens and throughput of chunk reuse over prefix caching (Cache-Craft Fig. 22).

    python -m benchmarks.chunks.load --data PATH --json

The first requests of a retrieval workload, through proxy and embedded engine, from an empty cache:
`--at-once` clients each send the next request when theirs is answered. Nothing is reordered, and
both arms send the same requests: `prefix`, prefix caching alone; `0.15`, also the KV of documents
that earlier requests computed at other places, with this share recomputed. `computed` counts all
tokens that the engine computed, recomputed ones included. `--warm` requests come first, unmeasured.
The model is random, so answers are meaningless.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.chunks.end_to_end import build_model
from benchmarks.chunks.served import SOURCES, Answer, serve
from benchmarks.datasets.workloads import load_data
from benchmarks.engines.end_to_end import load_documents
from ragboost.chunk_cache.selection import DEFAULT_POLICY
from ragboost.config import (
    DedupSettings,
    EngineSettings,
    HintSettings,
    OrderingSettings,
    Settings,
)

AS_SENT = Settings(
    ordering=OrderingSettings(enabled=False),
    dedup=DedupSettings(enabled=False),
    hints=HintSettings(order=False, location=False),
)


def bodies(args: argparse.Namespace, reuse: Any) -> list[dict[str, Any]]:
    """Return the requests of the workload."""
    workload = load_data(args.data, retriever=args.retriever, k=args.k)
    documents = load_documents(args.data, corpus=args.corpus)
    return [
        {
            "messages": [
                {"role": "system", "content": "Answer from the documents, briefly."},
                {"role": "user", "content": question},
            ],
            "max_tokens": args.new_tokens,
            "ignore_eos": True,
            "ragboost": {
                "documents": [{"text": documents[d].text} for d in context],
                "reuse": reuse,
            },
        }
        for question, context in zip(workload.questions, workload.contexts, strict=True)
    ][: args.warm + args.requests]


def run_arm(model: Path, requests: Sequence[dict[str, Any]], args: argparse.Namespace) -> Any:
    """Serve the requests, and return the figures."""
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
        "ttft_s": round(statistics.fmean(answer.ttft_ms for answer, _ in found) / 1000, 2),
    }


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Serve every arm, one after another, each from an empty cache."""
    arms: dict[str, Any] = {"prefix": "exact"}
    arms |= {f"{ratio:g}": {"policy": DEFAULT_POLICY, "ratio": ratio} for ratio in args.ratios}
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        build_model(Path(folder), layers=args.layers)
        for name, reuse in arms.items():
            found[name] = run_arm(Path(folder), bodies(args, reuse), args)
            print(f"{name}: {found[name]}", file=sys.stderr)
    alone = found["prefix"]
    over_prefix = {
        name: {
            "fewer_tokens": round(1 - arm["computed"] / alone["computed"], 3),
            "throughput": round(arm["requests_per_s"] / alone["requests_per_s"], 2),
            "throughput_per_cpu_s": round(
                arm["requests_per_cpu_s"] / alone["requests_per_cpu_s"], 2
            ),
            "latency": round(alone["latency_s"] / arm["latency_s"], 2),
        }
        for name, arm in found.items()
        if name != "prefix"
    }
    return {
        "data": args.data.name,
        "requests": args.requests,
        "warm": args.warm,
        "k": args.k,
        "layers": args.layers,
        "at_once": args.at_once,
        "policy": DEFAULT_POLICY,
        **found,
        "over_prefix": over_prefix,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder of a retrieval workload")
    parser.add_argument("--retriever", default="dense", help="its list")
    parser.add_argument(
        "--corpus", choices=["padded", "extracts"], default="padded", help="document texts"
    )
    parser.add_argument("--k", type=int, default=5, help="documents per request")
    parser.add_argument("--requests", type=int, default=60, help="measured requests")
    parser.add_argument("--warm", type=int, default=20, help="unmeasured requests before them")
    parser.add_argument("--ratios", type=float, nargs="+", default=[0.15, 0.3], help="recomputed")
    parser.add_argument("--at-once", type=int, default=4, help="clients")
    parser.add_argument("--layers", type=int, default=12, help="layers of the random model")
    parser.add_argument("--new-tokens", type=int, default=8, help="tokens of an answer")
    parser.add_argument("--capacity-tokens", type=int, default=65_536, help="prefix cache size")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    result = measure(args)
    if args.json:
        print(json.dumps(result))
        return
    for name in ("prefix", *result["over_prefix"]):
        print(f"{name:8}", result[name], result["over_prefix"].get(name, ""))


if __name__ == "__main__":
    main()
