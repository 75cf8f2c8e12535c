"""Measure hit rate and time to first token of a real engine, without and with RAGBoost.

    python -m benchmarks.engines.end_to_end --engine vllm --data PATH --json
    python -m benchmarks.engines.end_to_end --engine embedded --data PATH --corpus padded

Each mode has an engine and a proxy of its own with default settings. The modes alternate over the
same requests, `--at-once` of them concurrently, so TTFT includes queueing:

- `plain`: documents in the retriever's order;
- `boosted`: independent requests planned as one batch, or conversations boosted turn by turn;
- `online`: independent requests boosted on arrival, with the index following the engine.

With `--reuse RATIO` (vLLM), independent requests have four modes instead: `plain`; `order`, as
`online`; `reuse`, the retriever's order with the documents' stored KV reused and this share of it
recomputed; and `order_reuse`. `ragboost precompute` has stored the documents before. Reuse computes
two layers of all tokens, so it takes a model of more than a few: `--model deep`.

`hit_rate` is taken from the engine's own metrics, `prefill_tokens` from the `usage` of each
response; TTFT is in milliseconds. docs/lab/end-to-end.md explains the defaults.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from benchmarks.datasets.workloads import Workload, load_data, read_rows
from benchmarks.engines.replays import (
    INDEPENDENT,
    REUSING,
    TURNS,
    replay_independent,
    replay_reusing,
    replay_turns,
)
from benchmarks.engines.served import Mode, Served, serve
from ragboost.types import Document, Request
from scripts.processes import exit_on_sigterm
from tests.engines.servers import missing

MAX_MODEL_LEN = 32_768
PADDED_CHARACTERS = 960  # of a document: about 380 tokens of the tiny models


class Loaded(NamedTuple):
    """A workload with its requests as text, `k` documents each."""

    workload: Workload
    requests: list[Request]
    k: int


def main() -> None:
    """Measure and print."""
    options = parse(sys.argv[1:])
    exit_on_sigterm()
    loaded = load(options)
    with serve(
        modes(loaded, options),
        engine=options.engine,
        cache_tokens=options.cache_tokens,
        max_model_len=MAX_MODEL_LEN,
        shape=options.model,
    ) as served:
        result = measure(served, loaded, options)
    if options.json:
        print(json.dumps(result))
    else:
        show(result)


def modes(loaded: Loaded, options: argparse.Namespace) -> dict[str, Mode]:
    """Return the modes to serve."""
    if options.reuse is None:
        names = TURNS if loaded.workload.conversations else INDEPENDENT
        return {name: Mode() for name in names}
    chunks = {"host_bytes": 2 << 30}
    unordered = {"ordering": {"enabled": False}, "hints": {"order": False}}
    ways = (Mode(), Mode(), Mode(unordered, chunks), Mode(chunks=chunks))
    return dict(zip(REUSING, ways, strict=True))


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line; exit with an error if the engine is not installed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
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
    parser.add_argument(
        "--reuse", type=float, metavar="RATIO", help="measure chunk reuse; share to recompute"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    reason = missing(options.engine)
    if reason:
        parser.error(reason)
    if options.model != "tiny" and options.engine == "embedded":
        parser.error("--model applies to vLLM and SGLang; the embedded engine has a built-in model")
    if options.reuse is not None and options.engine != "vllm":
        parser.error("--reuse applies to vLLM")
    return options


def load(options: argparse.Namespace) -> Loaded:
    """Read the workload; options left out default to what its data offers."""
    has_native = any(options.data.glob("retrieved_native.jsonl*"))
    retriever = options.retriever or ("native" if has_native else "dense")
    k = options.k or (5 if has_native else 10)
    workload = load_data(options.data, retriever=retriever, k=k)
    documents = load_documents(options.data, corpus=options.corpus)
    requests = [
        Request(question, tuple(documents[d] for d in context if d in documents))
        for question, context in zip(workload.questions, workload.contexts, strict=True)
    ]
    return Loaded(workload, requests, k)


def measure(
    served: Mapping[str, Served], loaded: Loaded, options: argparse.Namespace
) -> dict[str, Any]:
    """Send the workload and return the figures."""
    workload, requests, k = loaded
    if options.reuse is not None:
        figures = replay_reusing(
            served,
            requests,
            count=options.requests,
            at_once=options.at_once,
            ratio=options.reuse,
        )
    elif workload.conversations:
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
        "k": k,
        "cache_tokens": options.cache_tokens,
        "at_once": options.at_once,
        "model": options.model,
        **figures,
    }


def load_documents(folder: Path, *, corpus: str) -> dict[Any, Document]:
    """Return the documents by id; padded ones are cut to PADDED_CHARACTERS.

    As in the papers, prompts and hints name documents by number.
    """
    pattern = "corpus_padded*.jsonl*" if corpus == "padded" else "corpus.jsonl*"
    end = PADDED_CHARACTERS if corpus == "padded" else None
    return {
        row["id"]: Document(row["text"][:end], id=str(number), title=row.get("title") or None)
        for number, row in enumerate(read_rows(folder, pattern), 1)
    }


def show(result: Mapping[str, Any]) -> None:
    """Print tables."""
    console = Console()
    names = [mode for mode in dict.fromkeys((*INDEPENDENT, *REUSING)) if mode in result]
    title = f"{result['workload']} on {result['engine']}: {result['requests']} requests"
    table = Table("", *names, title=title)
    for figure in result["plain"]:
        table.add_row(figure, *(str(result[mode][figure]) for mode in names))
    console.print(table)
    if turns := result.get("turns"):
        by_turn = Table(*turns[0])
        for row in turns:
            by_turn.add_row(*map(str, row.values()))
        console.print(by_turn)
    console.print({name: value for name, value in result.items() if "ratio" in name})


if __name__ == "__main__":
    main()
