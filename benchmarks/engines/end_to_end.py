"""Measure hit rate and time to first token of a real engine, without and with RAGBoost.

    python -m benchmarks.engines.end_to_end --engine vllm --data PATH --json
    python -m benchmarks.engines.end_to_end --engine embedded --data PATH --corpus padded

Each mode has an engine and a proxy of its own with default settings. The modes alternate over the
same requests, `--at-once` of them concurrently, so TTFT includes queueing:

- `plain`: documents in the retriever's order;
- `boosted`: independent requests planned as one batch, or conversations boosted turn by turn;
- `online`: independent requests boosted on arrival, with the index following the engine.

`hit_rate` is taken from the engine's own metrics, `prefill_tokens` from the `usage` of each
response; TTFT is in milliseconds. docs/lab/end-to-end.md explains the defaults.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.command import make_parser, report, show_columns, show_rows
from benchmarks.datasets.retrieval import load_requests
from benchmarks.datasets.workloads import Workload
from benchmarks.engines.replays import (
    INDEPENDENT,
    TURNS,
    replay_independent,
    replay_turns,
)
from benchmarks.engines.served import Mode, Served, serve
from ragboost.types import Request
from scripts.processes import exit_on_sigterm
from tests.engines.servers import missing

MAX_MODEL_LEN = 32_768


class Loaded(NamedTuple):
    """A workload with its requests as text."""

    workload: Workload
    requests: list[Request]


def main() -> None:
    options = parse(sys.argv[1:])
    exit_on_sigterm()
    loaded = load(options)
    with serve(
        dict.fromkeys(TURNS if loaded.workload.conversations else INDEPENDENT, Mode()),
        engine=options.engine,
        cache_tokens=options.cache_tokens,
        max_model_len=MAX_MODEL_LEN,
        shape=options.model,
    ) as served:
        result = measure(served, loaded, options)
    report(result, options, show)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line; exit with an error if the engine is not installed."""
    parser = make_parser(__doc__)
    parser.add_argument(
        "--engine", choices=["vllm", "sglang", "embedded"], required=True, help="engine to start"
    )
    parser.add_argument("--data", type=Path, required=True, help="folder of a retrieval workload")
    parser.add_argument(
        "--corpus", choices=["padded", "extracts"], default="extracts", help="document texts"
    )
    parser.add_argument("--retriever", help="default: native if present, else dense")
    parser.add_argument("--requests", type=int, default=200, help="requests to measure")
    parser.add_argument(
        "--sample", choices=["stretches", "first"], default="stretches", help="choice of requests"
    )
    parser.add_argument("--k", type=int, help="documents per request; default: 10, or 5 per turn")
    parser.add_argument(
        "--at-once", type=int, default=10, help="requests or conversations sent concurrently"
    )
    parser.add_argument("--cache-tokens", type=int, default=400_000, help="prefix cache size")
    parser.add_argument(
        "--model", choices=["tiny", "wide", "deep"], default="tiny", help="model of vLLM and SGLang"
    )
    options = parser.parse_args(arguments)
    reason = missing(options.engine)
    if reason:
        parser.error(reason)
    if options.model != "tiny" and options.engine == "embedded":
        parser.error("--model applies to vLLM and SGLang; the embedded engine has a built-in model")
    return options


def load(options: argparse.Namespace) -> Loaded:
    """Read the workload; options left out default to what its data offers."""
    read = load_requests(
        options.data, retriever=options.retriever, k=options.k, corpus=options.corpus
    )
    return Loaded(*read)


def measure(
    served: Mapping[str, Served], loaded: Loaded, options: argparse.Namespace
) -> dict[str, Any]:
    """Send the workload and return the figures."""
    workload, requests = loaded
    if workload.conversations:
        figures = replay_turns(
            served,
            [[requests[i] for i in turns] for turns in workload.conversations],
            count=options.requests,
            at_once=options.at_once,
            max_prompt_tokens=MAX_MODEL_LEN - 512,
        )
    else:
        figures = replay_independent(
            served,
            requests,
            count=options.requests,
            sample=options.sample,
            at_once=options.at_once,
        )
    return {
        "engine": options.engine,
        "workload": workload.name,
        "corpus": options.corpus,
        "k": max(map(len, workload.contexts)),
        "cache_tokens": options.cache_tokens,
        "at_once": options.at_once,
        "model": options.model,
        **figures,
    }


def show(result: Mapping[str, Any]) -> None:
    title = f"{result['workload']} on {result['engine']}: {result['requests']} requests"
    show_columns({mode: result[mode] for mode in INDEPENDENT if mode in result}, title)
    if turns := result.get("turns"):
        show_rows(turns)
    print({name: value for name, value in result.items() if "ratio" in name})


if __name__ == "__main__":
    main()
