"""Measure the cost of loading chunk KV from disk, and how well prefetching hides it.

    python -m benchmarks.chunks.tiers --json
    python -m benchmarks.chunks.tiers --real --json
    python -m benchmarks.chunks.tiers --only queue

`media`: throughput (MiB/s) of reading and verifying a 16 MiB chunk from RAGBoost's files, from a
memory map of the same file, and from LMDB if installed; with warm and with dropped pages; and of
durable writes.
`queue`: mean TTFT of requests that arrive together, each with its KV on disk. Slower disks are
simulated by a delay per layer; layers take a constant time (0.4 s per prefill) unless `--real`.
`fallback` (`--real` only): one request whose store knows both speeds and may compute KV that would
load too slowly.
`storage`: chunks stored and computed by a plain prefix cache and by a chunk store (FusionRAG
5.3.3).
"""

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.chunks.tier_media import media
from benchmarks.chunks.tier_models import CHUNK, CHUNKS, QUESTION, SYSTEM, Bench, Clockwork, Model
from benchmarks.chunks.tier_storage import sweep, two_settings
from benchmarks.command import make_parser, report, show_columns, show_rows
from ragboost.chunk_cache.store.speeds import Speeds
from ragboost.chunk_cache.store.tiered import TieredStore


def new_store(bench: Bench, *, load_s: float, speeds: Speeds | None = None) -> TieredStore:
    """Return an empty store over a disk that loads the KV of one request in `load_s` seconds."""
    bench.disk.layer_s = load_s / (bench.num_layers * (CHUNKS + 1))
    return TieredStore(host_bytes=1 << 33, disk=bench.disk, speeds=speeds)


def fallback(model: Model, repeats: int) -> list[dict[str, Any]]:
    """Compare a request that waits for its KV with one whose store may compute it instead."""
    num_tokens = SYSTEM + CHUNKS * CHUNK
    compute_s = model.full_s * num_tokens / (num_tokens + QUESTION)
    rows = []
    for ratio in (1.0, 2.0, 4.0, 8.0):
        runs: dict[str, list[float]] = {}
        for _ in range(repeats):
            speeds = Speeds()
            # Twice: two threads load each time, and four loads tell the speed of a place.
            for arm in ("in memory", "waiting", "waiting", "choosing", "nothing stored"):
                store = TieredStore(host_bytes=1)
                if arm != "nothing stored":
                    load_s = 0.0 if arm == "in memory" else ratio * model.prefill_s
                    known = None if arm == "in memory" else speeds
                    store = new_store(model, load_s=load_s, speeds=known)
                if arm == "in memory":
                    for key in model.keys(0):
                        assert store.get(key) is not None, "it is on disk"
                if arm == "choosing":
                    speeds.computed(num_tokens, compute_s)
                begin = time.perf_counter()
                store.prefetch(dict.fromkeys(model.keys(0), CHUNK))
                model.run(store, 0)
                runs.setdefault(arm, []).append(time.perf_counter() - begin)
                store.close()
        median = {arm: statistics.median(times) for arm, times in runs.items()}
        rows.append(
            {"load_to_prefill": ratio}
            | {arm: round(median[arm] / median["in memory"], 2) for arm in list(median)[1:]}
        )
    return rows


def queued(bench: Bench, *, load_s: float, arm: str) -> float:
    """Return the mean TTFT of requests that arrive together and are served one by one."""
    store = new_store(bench, load_s=load_s)
    if arm == "in memory":
        for number in range(bench.num_requests):
            for key in bench.keys(number):
                assert store.get(key) is not None, "it is on disk"
    begin = time.perf_counter()
    if arm == "asynchronous":
        for number in range(bench.num_requests):
            store.prefetch(dict.fromkeys(bench.keys(number), CHUNK))
    times = []
    for number in range(bench.num_requests):
        if arm == "synchronous":
            # only when the request is scheduled
            store.prefetch(dict.fromkeys(bench.keys(number), CHUNK))
        bench.run(store, number)
        times.append(time.perf_counter() - begin)
    store.close()
    return statistics.mean(times)


def queue(bench: Bench, repeats: int) -> list[dict[str, Any]]:
    """Measure requests that arrive together, by load time relative to prefill time."""
    rows = []
    arms = ("in memory", "synchronous", "asynchronous")
    for ratio in (0.5, 1.0, 2.0):
        runs: dict[str, list[float]] = {}
        for _ in range(repeats):
            for arm in arms:
                load_s = 0.0 if arm == "in memory" else ratio * bench.prefill_s
                runs.setdefault(arm, []).append(queued(bench, load_s=load_s, arm=arm))
        mean = {arm: statistics.median(values) for arm, values in runs.items()}
        cost = mean["synchronous"] - mean["in memory"]
        rows += [
            {
                "load_to_prefill": ratio,
                "arm": arm,
                "mean_ttft_ratio": round(mean[arm] / mean["in memory"], 2),
                "hidden_share": round((mean["synchronous"] - mean[arm]) / cost, 2),
            }
            for arm in arms
        ]
    return rows


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--requests", type=int, default=6, help="requests in the queue")
    parser.add_argument("--ratio", type=float, default=0.15, help="recompute ratio")
    parser.add_argument("--real", action="store_true", help="use a real model")
    parser.add_argument("--repeats", type=int, default=5, help="repeats per arm")
    parser.add_argument(
        "--only",
        choices=("media", "queue", "fallback", "storage"),
        help="run one part",
    )
    args = parser.parse_args()
    torch.set_num_threads(1)  # leaves a core for loading
    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        if args.only in (None, "media"):
            result["media_mib_s"] = media(Path(name))
        if args.only in (None, "storage"):
            result["storage"] = two_settings()
            result["storage_saved_by_setting"] = sweep()
        if args.only not in ("media", "storage"):
            result |= with_model(args, Path(name))
    report(result, args, show)


def show(result: dict[str, Any]) -> None:
    for title, rows in result.items():
        if not isinstance(rows, list):
            print(title, rows)
        elif len(rows[0]) > 7:
            show_columns({str(n): row for n, row in enumerate(rows)}, title)
        else:
            show_rows(rows, title)


def with_model(args: argparse.Namespace, directory: Path) -> dict[str, Any]:
    """Run the parts that need a model."""
    result: dict[str, Any] = {}
    bench: Bench
    if args.real:
        bench = model = Model(directory, num_requests=args.requests, ratio=args.ratio)
        result["full_prefill_ms"] = round(1000 * model.full_s)
    else:
        bench = Clockwork(directory, num_requests=args.requests, prefill_s=0.4)
    result["prefill_ms"] = round(1000 * bench.prefill_s)
    if args.only in (None, "queue"):
        result["queue"] = queue(bench, args.repeats)
        print("queue done", file=sys.stderr, flush=True)
    if args.real and args.only in (None, "fallback"):
        result["fallback"] = fallback(model, args.repeats)
    return result


if __name__ == "__main__":
    main()
