"""Measure hit rates of eviction policies, of cache-aware scheduling, and of both combined.

    python -m benchmarks.graph.replacement --workload uniform --capacity 0.1 0.2 0.4 --json

Requests follow DepCache section 6.4: each names 10 entities of a knowledge graph with up to 30
two-hop relation paths per entity, as token trees (`--shape graph`); or holds 10 documents in one
prompt, popular documents first (`--shape prefix`); or 10 chunks that are reusable at any position
(`--shape chunks`). Entities are drawn uniformly, by recency (temporal), or by a Zipf law. The
waiting queue always holds `--queue` requests; `--sweep` varies its length. A policy's hit rate is
the mean over requests of cached / prompt tokens after a warm-up that fills the cache.
`hit_rate[policy]` is averaged over seeds; `belady` knows the whole future; arms such as `lru+lpm`
reorder the queue.
"""

import argparse
import json
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.command import make_parser, report, show_rows
from ragboost.chunk_cache.eviction import EvictionPolicy
from research.eviction import POLICIES
from research.eviction.belady import Belady
from research.eviction.cache_tree import CacheTree, Forest
from research.eviction.schedules import SCHEDULES

WORKLOADS = ("uniform", "temporal", "zipf")
SHAPES = ("graph", "prefix", "chunks")
NUM_ENTITIES = 800
PER_REQUEST = 10
WARM_UP = 0.2
ARMS = (
    *((name, "fcfs") for name in POLICIES),
    *((name, order) for order in ("lpm", "lsp") for name in ("lru", "lacr")),
)


def draw(workload: str, num_requests: int, rng: np.random.Generator) -> list[list[int]]:
    """Draw the entities of each request, distinct within it.

    temporal: with probability 0.8 a recently used entity, at a geometric distance (mean 60) in the
    list of last uses; otherwise any entity. zipf: exponent 1.
    """
    weights = 1 / np.arange(1, NUM_ENTITIES + 1)
    popularity = rng.permutation(weights / weights.sum())
    recent: list[int] = list(rng.permutation(NUM_ENTITIES))
    requests = []
    for _ in range(num_requests):
        if workload == "uniform":
            chosen = rng.choice(NUM_ENTITIES, PER_REQUEST, replace=False).tolist()
        elif workload == "zipf":
            chosen = rng.choice(NUM_ENTITIES, PER_REQUEST, replace=False, p=popularity).tolist()
        else:
            chosen = []
            while len(chosen) < PER_REQUEST:
                near = rng.random() < 0.8
                rank = rng.geometric(1 / 60) - 1 if near else rng.integers(NUM_ENTITIES)
                entity = int(recent[min(int(rank), NUM_ENTITIES - 1)])
                if entity not in chosen:
                    chosen.append(entity)
            for entity in chosen:
                recent.remove(entity)
                recent.insert(0, entity)
        requests.append(chosen)
    return requests


def build(
    shape: str, requests: Sequence[Sequence[int]], rng: np.random.Generator
) -> tuple[Forest, list[list[int]]]:
    """Return the forest and the nodes that each request uses."""
    forest = Forest()
    if shape == "graph":
        trees = [_tree(forest, entity, rng) for entity in range(NUM_ENTITIES)]
        return forest, [
            [node for entity in chosen for node in trees[entity]] for chosen in requests
        ]
    lengths = rng.integers(200, 600, NUM_ENTITIES).tolist()
    if shape == "chunks":
        nodes = [forest.path([entity], [size])[0] for entity, size in enumerate(lengths)]
        return forest, [[nodes[entity] for entity in chosen] for chosen in requests]
    # One prompt, as ordered upstream of the engine: popular documents first.
    counts = np.bincount([e for chosen in requests for e in chosen], minlength=NUM_ENTITIES)
    ordered = [sorted(chosen, key=lambda e: (-counts[e], e)) for chosen in requests]
    return forest, [forest.path(chosen, [lengths[e] for e in chosen]) for chosen in ordered]


def _tree(forest: Forest, entity: int, rng: np.random.Generator) -> list[int]:
    """Add an entity with 5 to 30 two-hop paths; return its nodes."""
    num_paths = int(rng.integers(5, 31))
    relations = rng.integers(0, max(1, num_paths // 3), num_paths).tolist()
    nodes: dict[int, None] = {}
    sizes: dict[Any, int] = {entity: int(rng.integers(4, 12))}
    for path, relation in enumerate(relations):
        names = [entity, (entity, relation), (entity, relation, path)]
        for name in names:
            sizes.setdefault(name, int(rng.integers(8, 20)))
        nodes.update(dict.fromkeys(forest.path(names, [sizes[name] for name in names])))
    return list(nodes)


def serve(
    forest: Forest,
    requests: Sequence[Sequence[int]],
    policy: EvictionPolicy,
    *,
    capacity: int,
    order: str,
    queue: int,
) -> float:
    """Serve all requests and return the mean hit rate after the warm-up."""
    cache = CacheTree(forest, policy, capacity=capacity)
    pick = SCHEDULES[order]
    arriving = iter(requests)
    waiting: deque[Sequence[int]] = deque()
    last: Sequence[int] = ()
    rates = []
    while True:
        while len(waiting) <= queue and (request := next(arriving, None)) is not None:
            waiting.append(request)
        if not waiting:
            break
        number = pick(waiting, cache, forest, last)
        last = waiting[number]
        del waiting[number]
        if policy.sees_queue:
            policy.look_ahead(waiting)
        served = cache.request(last)
        rates.append(served.cached_tokens / served.prompt_tokens)
    cache.check_integrity()
    return float(np.mean(rates[int(WARM_UP * len(rates)) :]))


def measure(
    workload: str, share: float, args: argparse.Namespace, *, queue: int
) -> dict[str, float]:
    """Return the mean hit rate of every arm over the seeds."""
    sums: dict[str, list[float]] = {}
    for seed in range(args.seeds):
        rng = np.random.default_rng(seed)
        drawn = draw(workload, args.requests, rng)
        forest, requests = build(args.shape, drawn, rng)
        footprint = sum(forest.sizes[node] for node in {n for r in requests for n in r})
        options = {"capacity": max(1, int(share * footprint)), "queue": queue}
        for name, order in ARMS:
            label = name if order == "fcfs" else f"{name}+{order}"
            rate = serve(forest, requests, POLICIES[name](), order=order, **options)
            sums.setdefault(label, []).append(rate)
        bound = serve(forest, requests, Belady(requests), order="fcfs", **options)
        sums.setdefault("belady", []).append(bound)
    return {label: round(float(np.mean(rates)), 4) for label, rates in sums.items()}


def mean_rates(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Return the mean of `hit_rate` over rows."""
    labels = rows[0]["hit_rate"]
    return {k: round(float(np.mean([row["hit_rate"][k] for row in rows])), 4) for k in labels}


def run(args: argparse.Namespace, progress: Callable[[str], None]) -> dict[str, Any]:
    """Measure every combination of the arguments."""
    rows = []
    for queue in args.sweep or [args.queue]:
        for workload in args.workload or WORKLOADS:
            for share in args.capacity:
                begin = time.process_time()
                rates = measure(workload, share, args, queue=queue)
                rows.append(
                    {"workload": workload, "capacity": share, "queue": queue, "hit_rate": rates}
                )
                seconds = time.process_time() - begin
                progress(f"{workload} {share} queue {queue}: {seconds:.0f} s of CPU")
    hit_rate = mean_rates(rows)
    baselines = ("lru", "lfu", "pgdsf", "lru+lpm", "lru+lsp")
    margins = {
        workload: {
            name: round(100 * (mean["lacr"] - mean[name]), 1) for name in (*baselines, "belady")
        }
        for workload in sorted({row["workload"] for row in rows})
        for mean in [mean_rates([row for row in rows if row["workload"] == workload])]
    }
    return {
        "shape": args.shape,
        "requests": args.requests,
        "seeds": args.seeds,
        "hit_rate": hit_rate,
        "lacr_margin_points": {
            **margins,
            "mean": {
                name: round(100 * (hit_rate["lacr"] - hit_rate[name]), 1)
                for name in (*baselines, "belady")
            },
        },
        "rows": rows,
    }


def show(result: dict[str, Any]) -> None:
    """Print a row per policy, and a column per workload, capacity and queue."""
    columns = {f"{r['workload']} {r['capacity']:g} q{r['queue']}": r for r in result["rows"]}
    columns["mean"] = result
    rows = [
        {"policy": name, **{c: f"{100 * row['hit_rate'][name]:.1f}" for c, row in columns.items()}}
        for name in sorted(result["hit_rate"], key=lambda name: result["hit_rate"][name])
    ]
    show_rows(rows, f"token hit rate, %, shape {result['shape']}")
    print(f"LACR's margin, percentage points: {json.dumps(result['lacr_margin_points'])}")


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument(
        "--workload", choices=WORKLOADS, action="append", help="distribution of the entities"
    )
    parser.add_argument(
        "--capacity",
        type=float,
        nargs="+",
        default=[0.1, 0.2, 0.4],
        help="cache size as a share of all tokens in use",
    )
    parser.add_argument("--shape", choices=SHAPES, default="graph", help="structure of a request")
    parser.add_argument("--requests", type=int, default=500, help="requests per run")
    parser.add_argument("--queue", type=int, default=32, help="waiting requests")
    parser.add_argument("--sweep", type=int, nargs="+", help="queue lengths to compare")
    parser.add_argument("--seeds", type=int, default=1, help="number of seeds")
    args = parser.parse_args()
    result = run(args, lambda text: print(text, file=sys.stderr, flush=True))
    report(result, args, show)


if __name__ == "__main__":
    main()
