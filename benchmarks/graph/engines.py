"""Send graph requests through the proxy to a real vLLM or SGLang, written out and as subgraphs.

    python -m benchmarks.graph.engines --engine vllm --workload zipf --json

Queries as in `benchmarks.graph.depcache`: each names `--entities` entities of a synthetic graph,
with `--paths` two-hop paths each, as texts. `plain`: the paths written out in the order of the
query, ordinary attention; `order`: the proxy orders the entities' paths for the prefix cache;
`subgraphs`: each entity's paths are computed alone and reused, nothing is recomputed. Engines run
side by side, one query to each in turn; nothing is stored ahead, and the first `--warm` queries
are not counted. `engine_cpu_s` is the engine's processor time, for which other load does not
matter; the model's weights are random, so its answers are meaningless.
"""

import argparse
import json
import random
import sys
from pathlib import Path
from typing import Any

from benchmarks.command import make_parser, report, show_columns
from benchmarks.engines.served import Mode, serve
from benchmarks.graph.depcache import WORKLOADS, make_queries
from scripts.http_client import CHAT
from scripts.processes import exit_on_sigterm
from tests.engines.servers import missing

ARMS = ("plain", "order", "subgraphs")
_MAX_MODEL_LEN = 32_768
_SYLLABLES = ("ka", "lo", "mi", "ren", "sta", "tor", "vel", "dun", "har", "bis")
_RELATIONS = ("founded", "located in", "works for", "part of", "owns", "married to")


def make_texts(rng: random.Random, *, roots: int, paths: int) -> list[list[list[str]]]:
    """Draw the paths of each root, with two to ten second hops per first hop."""

    def entity() -> str:
        words = ["".join(rng.choices(_SYLLABLES, k=rng.randint(2, 3))) for _ in range(2)]
        return " ".join(words).title()

    graph = []
    for _ in range(roots):
        root = entity()
        found: list[list[str]] = []
        while len(found) < paths:
            first = [root, rng.choice(_RELATIONS), entity()]
            count = min(rng.randint(2, 10), paths - len(found))
            found += [[*first, rng.choice(_RELATIONS), entity()] for _ in range(count)]
        graph.append(found)
    return graph


def make_body(paths: list[list[str]], arm: str) -> dict[str, Any]:
    graph = {"paths": paths, "attention": "subgraphs" if arm == "subgraphs" else "self"}
    question = f"Which of them is connected to {paths[-1][-1]}?"
    return {
        "messages": [{"role": "user", "content": question}],
        "ragboost": {"graph": graph, "options": {"boost": arm != "plain"}},
    }


def measure(args: argparse.Namespace) -> dict[str, Any]:
    rng = random.Random(args.seed)
    graph = make_texts(rng, roots=args.roots, paths=args.paths)
    queries = make_queries(
        rng,
        args.workload,
        count=args.warm + args.queries,
        roots=args.roots,
        entities=args.entities,
    )
    chunks = {"host_bytes": 2 << 30, "fill": args.fill}
    modes = {arm: Mode({}, chunks if arm == "subgraphs" else None) for arm in args.arms}
    shape = ("engine", "model", "workload", "entities", "paths", "roots", "queries", "warm", "fill")
    facts = {name: getattr(args, name) for name in shape}
    arms: dict[str, Any] = {}
    with serve(
        modes,
        engine=args.engine,
        cache_tokens=args.capacity_tokens,
        max_model_len=_MAX_MODEL_LEN,
        shape=args.model,
    ) as served:
        for number, query in enumerate(queries):
            paths = [path for entity in query for path in graph[entity]]
            for arm, engine in served.items():
                if number == args.warm:
                    engine.restart_counting()
                engine.measure(CHAT, [make_body(paths, arm)])
            print(f"query {number + 1} of {len(queries)}", file=sys.stderr, flush=True)
            if number > args.warm:  # TTFT needs two answers
                arms = {arm: engine.summary() for arm, engine in served.items()}
                if args.keep:
                    args.keep.write_text(json.dumps({**facts, "arms": arms}))
    return {**facts, "arms": arms}


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--engine", choices=["vllm", "sglang"], default="vllm")
    parser.add_argument("--model", choices=["tiny", "wide", "deep"], default="deep")
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=ARMS)
    parser.add_argument("--workload", choices=WORKLOADS, default="zipf")
    parser.add_argument("--entities", type=int, default=10, help="entities per query")
    parser.add_argument("--paths", type=int, default=30, help="paths per entity")
    parser.add_argument("--roots", type=int, default=100, help="entities in the graph")
    parser.add_argument("--queries", type=int, default=12, help="measured queries")
    parser.add_argument("--warm", type=int, default=20, help="unmeasured queries before")
    parser.add_argument("--capacity-tokens", type=int, default=65_536, help="prefix cache size")
    parser.add_argument("--fill", choices=["faster", "always"], default="faster")
    parser.add_argument(
        "--keep", type=Path, metavar="FILE", help="write the figures so far into it"
    )
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    exit_on_sigterm()
    if reason := missing(args.engine):
        parser.error(reason)
    report(measure(args), args, lambda result: show_columns(result["arms"]))


if __name__ == "__main__":
    main()
