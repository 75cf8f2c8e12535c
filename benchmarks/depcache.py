"""Measure TTFT, throughput and attention work of GraphRAG prompts with dependency attention.

    python -m benchmarks.depcache --workload zipf --json

Compares ordinary attention over flattened paths (`self_attention`), dependency attention
(`dependency`), dependency attention with subgraph reuse (`dependency_reuse`), and the way for
untuned models: flattened paths, subgraphs independent of each other and reused (`subgraphs_reuse`).
Every query names `--entities` entities of a synthetic graph, each with a two-hop subgraph of
`--paths` relation paths. The model is the engine's built-in one with random weights. Every query
runs with all variants in succession, so that noise affects them alike. `ttft_ms` is the median
processor time with one thread, including layout, matching and assembly. `self_attention` runs the
model's own causal kernel on the whole prompt.
"""

import argparse
import json
import platform
import random
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from transformers.cache_utils import DynamicCache

from ragboost.chunk_cache.model.adapter import ModelAdapter
from ragboost.engine.builtin import build_model
from ragboost.graph.depcache import DepCache
from ragboost.graph.layout import DepPrompt, LinearNode, Positions

WORKLOADS = ("uniform", "temporal", "zipf")
SYSTEM, TASK = 64, 32
ENTITY, RELATION = 3, 2
"""Tokens per entity name and per relation."""
RECENT, RECENT_SHARE = 30, 0.8
"""Temporal workload: number of recent entities, and the share of draws from them."""

Paths = list[tuple[int, ...]]
Prompt = Callable[[list[int]], DepPrompt]


def make_graph(rng: random.Random, *, roots: int, paths: int, vocabulary: int) -> list[Paths]:
    """Draw the two-hop subgraph of each root, with two to ten second hops per first hop."""

    def draw(count: int) -> tuple[int, ...]:
        return tuple(rng.randrange(3, vocabulary) for _ in range(count))

    graph = []
    for _ in range(roots):
        root, found = draw(ENTITY), []
        while len(found) < paths:
            first = (*root, *draw(RELATION), *draw(ENTITY))
            count = min(rng.randint(2, 10), paths - len(found))
            found += [(*first, *draw(RELATION), *draw(ENTITY)) for _ in range(count)]
        graph.append(found)
    return graph


def make_queries(
    rng: random.Random, workload: str, *, count: int, roots: int, entities: int
) -> list[list[int]]:
    """Draw the entities of each query, distinct within a query."""
    queries: list[list[int]] = []
    recent: list[int] = []
    weights = [1 / (rank + 1) for rank in range(roots)]
    for _ in range(count):
        query: dict[int, None] = {}
        while len(query) < entities:
            if workload == "zipf":
                entity = rng.choices(range(roots), weights)[0]
            elif workload == "temporal" and recent and rng.random() < RECENT_SHARE:
                entity = rng.choice(recent)
            else:
                entity = rng.randrange(roots)
            query[entity] = None
        queries.append(list(query))
        recent = [*[e for e in recent if e not in query], *query][-RECENT:]
    return queries


class Bench:
    """One model and one workload, with four variants of answering a query."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.adapter = ModelAdapter(build_model("small", seed=args.seed))
        self.new_tokens = args.new_tokens
        vocabulary = int(self.adapter.config.vocab_size)
        rng = random.Random(args.seed)
        self.graph = make_graph(rng, roots=args.roots, paths=args.paths, vocabulary=vocabulary)
        self.queries = make_queries(
            rng,
            args.workload,
            count=args.warm + args.queries,
            roots=args.roots,
            entities=args.entities,
        )
        self.system = tuple(rng.randrange(3, vocabulary) for _ in range(SYSTEM))
        self.task = tuple(rng.randrange(3, vocabulary) for _ in range(TASK))
        self.plain = DepCache(self.adapter, capacity_tokens=0, positions=args.positions)
        self.window = args.window
        self.next = 0
        self.reusing = self._reusing(args, args.positions, self.tree)
        self.apart = self._reusing(args, "preorder", self.subgraphs)

    def _reusing(self, args: argparse.Namespace, positions: Positions, prompt: Prompt) -> DepCache:
        """Return a cache that looks ahead at the waiting queries' prompts."""
        depcache = DepCache(
            self.adapter,
            capacity_tokens=args.capacity_tokens,
            host_tokens=args.host_tokens,
            replacement=args.replacement,
            positions=positions,
        )
        depcache.look_ahead(
            lambda: [
                (depcache.layout(prompt(query)), "")
                for query in self.queries[self.next : self.next + self.window]
            ]
        )
        return depcache

    def tree(self, query: list[int]) -> DepPrompt:
        """Return the prompt with the paths as a tree."""
        paths = [path for entity in query for path in self.graph[entity]]
        return DepPrompt.of(self.system, paths, self.task)

    def subgraphs(self, query: list[int]) -> DepPrompt:
        """Return the prompt with each entity's paths written out, seeing no other entity's."""
        parts = [
            LinearNode(
                f"subgraph {entity}",
                tuple(t for path in self.graph[entity] for t in path),
                ("system",),
            )
            for entity in query
        ]
        seen = ("system", *(part.name for part in parts))
        return DepPrompt(
            (LinearNode("system", self.system), *parts, LinearNode("task", self.task, seen))
        )

    def self_attention(self, query: list[int]) -> dict[str, float]:
        written = [t for entity in query for path in self.graph[entity] for t in path]
        ids = torch.tensor([[*self.system, *written, *self.task]])
        begin = time.process_time()
        with torch.no_grad():
            cache = DynamicCache()
            out = self.adapter.model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
            first = time.process_time()
            token = out.logits[0, -1].argmax()
            for _ in range(self.new_tokens - 1):
                out = self.adapter.model(token.view(1, 1), past_key_values=cache, use_cache=True)
                token = out.logits[0, -1].argmax()
        count = ids.shape[1]
        return {
            "ttft_ms": 1e3 * (first - begin),
            "seconds": time.process_time() - begin,
            "prompt_tokens": count,
            "computed_tokens": count,
            "attention_pairs": count * (count + 1) // 2,
        }

    def dependency(self, prompt: DepPrompt, depcache: DepCache) -> dict[str, float]:
        begin = time.process_time()
        kv = depcache.compute_depkv(prompt)
        first = time.process_time()
        depcache.generate_with_depkv(kv, max_tokens=self.new_tokens)
        return {
            "ttft_ms": 1e3 * (first - begin),
            "seconds": time.process_time() - begin,
            "prompt_tokens": len(kv.layout),
            "computed_tokens": len(kv.computed),
            "attention_pairs": int(kv.layout.dense_mask()[kv.computed].sum()),
        }


def summary(rows: list[dict[str, float]]) -> dict[str, float]:
    total = {name: sum(row[name] for row in rows) for name in rows[0]}
    return {
        "ttft_ms": round(statistics.median(row["ttft_ms"] for row in rows), 1),
        "prompt_tokens": round(total["prompt_tokens"] / len(rows)),
        "reuse_rate": round(1 - total["computed_tokens"] / total["prompt_tokens"], 4),
        "requests_per_s": round(len(rows) / total["seconds"], 3),
        "attention_pairs": round(total["attention_pairs"] / len(rows)),
    }


def measure(args: argparse.Namespace) -> dict[str, Any]:
    bench = Bench(args)
    variants: dict[str, Callable[[list[int]], dict[str, float]]] = {
        "self_attention": bench.self_attention,
        "dependency": lambda query: bench.dependency(bench.tree(query), bench.plain),
        "dependency_reuse": lambda query: bench.dependency(bench.tree(query), bench.reusing),
        "subgraphs_reuse": lambda query: bench.dependency(bench.subgraphs(query), bench.apart),
    }
    for variant in variants.values():  # warm up: the first call allocates memory
        variant(bench.queries[0])
    for depcache in (bench.reusing, bench.apart):
        if depcache.tree is not None:
            depcache.tree.clear()
    rows: dict[str, list[dict[str, float]]] = {name: [] for name in variants}
    for number, query in enumerate(bench.queries):
        bench.next = number + 1
        if number < args.warm:
            bench.reusing.compute_depkv(bench.tree(query))
            bench.apart.compute_depkv(bench.subgraphs(query))
            continue
        for name, variant in variants.items():
            rows[name].append(variant(query))
        print(f"query {number - args.warm + 1} of {args.queries}", file=sys.stderr)
    found = {name: summary(row) for name, row in rows.items()}
    plain, tree, reuse, apart = found.values()
    return {
        "workload": args.workload,
        **found,
        "speedup": {
            "attention": round(plain["ttft_ms"] / tree["ttft_ms"], 2),
            "reuse": round(tree["ttft_ms"] / reuse["ttft_ms"], 2),
            "ttft": round(plain["ttft_ms"] / reuse["ttft_ms"], 2),
            "throughput": round(reuse["requests_per_s"] / plain["requests_per_s"], 2),
            "subgraphs": round(plain["ttft_ms"] / apart["ttft_ms"], 2),
            "subgraphs_throughput": round(apart["requests_per_s"] / plain["requests_per_s"], 2),
        },
        "positions": args.positions,
        "replacement": args.replacement,
        "capacity_tokens": args.capacity_tokens,
        "host_tokens": args.host_tokens,
        "roots": args.roots,
        "queries": args.queries,
        "warm": args.warm,
        "new_tokens": args.new_tokens,
        "threads": torch.get_num_threads(),
        "machine": platform.processor() or platform.machine(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--workload", choices=WORKLOADS, default="zipf", help="distribution of the entities"
    )
    parser.add_argument("--entities", type=int, default=10, help="entities per query")
    parser.add_argument("--paths", type=int, default=30, help="paths per entity")
    parser.add_argument("--roots", type=int, default=100, help="entities in the graph")
    parser.add_argument("--queries", type=int, default=12, help="measured queries")
    parser.add_argument("--warm", type=int, default=20, help="unmeasured queries before")
    parser.add_argument(
        "--window", type=int, default=8, help="waiting queries visible to replacement"
    )
    parser.add_argument("--new-tokens", type=int, default=16, help="tokens to generate")
    parser.add_argument(
        "--capacity-tokens", type=int, default=10_000, help="size of the subgraph cache"
    )
    parser.add_argument(
        "--host-tokens", type=int, default=0, help="size of the tier below it, in host memory"
    )
    parser.add_argument("--replacement", default="lacr", help="eviction policy")
    parser.add_argument(
        "--positions",
        choices=("depth", "preorder"),
        default="depth",
        help="position ids of the paths",
    )
    parser.add_argument("--threads", type=int, default=1, help="compute threads")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    result = measure(args)
    if args.json:
        print(json.dumps(result))
        return
    print(f"{'':17} {'prompt':>7} {'reused':>7} {'pairs':>10} {'TTFT ms':>8} {'req/s':>6}")
    for name in ("self_attention", "dependency", "dependency_reuse", "subgraphs_reuse"):
        row = result[name]
        print(
            f"{name:17} {row['prompt_tokens']:7} {row['reuse_rate']:7.0%} "
            f"{row['attention_pairs']:10} {row['ttft_ms']:8.1f} {row['requests_per_s']:6.2f}"
        )
    print("speed-up:", ", ".join(f"{name} {x}x" for name, x in result["speedup"].items()))


if __name__ == "__main__":
    main()
