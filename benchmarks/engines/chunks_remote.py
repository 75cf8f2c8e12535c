"""Measure what a second engine loads from a store that the first one has filled.

    python -m benchmarks.engines.chunks_remote --store redis --json
    python -m benchmarks.engines.chunks_remote --store mooncake --json

`ragboost precompute --engine` stores a corpus in the first engine; the second one, which has
computed nothing, answers requests with new orders of the documents, each document asked for once.

- `loaded_share`: document tokens that the second engine took from the store, in all requests, and
  in the first one (`loaded_share_first`); of an engine that is started again,
  `loaded_share_restarted`.
- `ttft_to_warm`: median time to the first token of these requests, divided by that of the first
  engine, which has all KV in memory; both without a cached prefix, in turns. `cpu_to_warm`: the
  same of the processor time of the engine's processes, which other work hardly changes.
- `load_s`, `fill_s`: of one such request in the second engine (with one rank): the time of loading
  from the store, added up over two threads, and that of filling the prompt. Loading layer by layer
  could hide at most the smaller one.
- `max_logprob_difference`: greatest difference between the answers of both, over the twenty most
  likely first tokens, of the `num_compared` requests for which both took as many tokens from the
  store: a document that came too late is computed, which is another approximation.
"""

import argparse
import random
import statistics
import sys
import time
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from benchmarks.command import make_parser, report, show_figures
from ragboost.chunk_cache.http.chunk_client import ChunkClient
from ragboost.chunk_cache.http.precompute import SEPARATOR, prepare
from scripts.processes import exit_on_sigterm
from tests.engines.servers import EngineServer, Kind, missing
from tests.fakes import mooncake
from tests.fakes.mooncake import MooncakeServer
from tests.fakes.redis import PROGRAM, RedisServer
from tests.metrics import read_metric

_WORDS = ("shelf", "item", "coin", "lamp", "river", "stone", "paper", "north", "late", "green")
_PER_REQUEST = 4


class RemoteAnswer(NamedTuple):
    """One answer of an engine."""

    seconds: float  # to the first token, which is the whole answer
    cpu_seconds: float  # of the engine's processes meanwhile
    loaded_tokens: int  # of the prompt that were not computed
    logprobs: dict[str, float]  # of the likeliest first tokens


def make_store(name: str) -> AbstractContextManager[Any]:
    """Return a server of the store, to be started."""
    if name == "redis":
        if PROGRAM is None:
            sys.exit("needs redis-server or valkey-server on PATH")
        return RedisServer()
    if (reason := mooncake.missing()) is not None:
        sys.exit(reason)
    return MooncakeServer(size="1 GB")  # all documents fit


def make_documents(count: int, *, words: int) -> list[str]:
    """Return random texts."""
    draw = random.Random(0)
    return [
        " ".join(f"{draw.choice(_WORDS)} {draw.randrange(1000)}" for _ in range(words))
        for _ in range(count)
    ]


def ask(server: EngineServer, texts: list[str], *, ratio: float) -> RemoteAnswer:
    """Send one request with these documents, which the prefix cache must not hold."""
    server.clear_cache()
    positions, at = [], 0
    for text in texts:
        positions.append([0, at, at + len(text)])
        at += len(text) + len(SEPARATOR)
    body = {
        "model": "tiny",
        "messages": [{"role": "user", "content": SEPARATOR.join([*texts, "Which is worth most?"])}],
        "max_tokens": 1,
        "temperature": 0,
        "logprobs": True,
        "top_logprobs": 20,
        "ragboost": {"reuse": {"policy": "gradual", "ratio": ratio}, "chunks": positions},
    }
    cpu_begin, begin = server.cpu_seconds(), time.perf_counter()
    answer = server.post("/v1/chat/completions", body)
    seconds, cpu_seconds = time.perf_counter() - begin, server.cpu_seconds() - cpu_begin
    origins = answer["usage"].get("ragboost", {})
    loaded = sum(origins.get(name, 0) for name in ("exact", "reused", "recomputed"))
    top = answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
    return RemoteAnswer(
        seconds, cpu_seconds, loaded, {entry["token"]: entry["logprob"] for entry in top}
    )


def count_tokens(server: EngineServer, text: str) -> int:
    """Return the number of a text's tokens."""
    told = server.post("/tokenize", {"prompt": text, "add_special_tokens": False})
    return len(told["tokens"])


def compare(args: argparse.Namespace, address: str) -> dict[str, Any]:
    """Run both engines and return the figures."""
    documents = make_documents(_PER_REQUEST * args.requests, words=args.words)
    requests = [
        documents[first : first + _PER_REQUEST] for first in range(0, len(documents), _PER_REQUEST)
    ]
    settings = {"remote": address, "host_bytes": 2 << 30}
    options: dict[str, Any] = {"shape": args.shape, "dtype": "float32", "events": "off"}
    options |= {"chunks": settings, "cache_tokens": 8192, "workers": args.workers}
    kind: Kind = args.engine
    with EngineServer(kind, **options) as first:
        client = ChunkClient(first.url)
        client.check()
        outcome = prepare(
            client, documents, [[]] * len(documents), system=None, concurrency=1,
            on_progress=lambda *_: None,
        )  # fmt: skip
        lengths = [sum(count_tokens(first, text) for text in texts) for texts in requests]
        with EngineServer(kind, **options) as second:
            for server in (first, second):
                server.complete([5] * 64, "warm-up")
            pairs = []
            for texts in requests:
                cold = ask(second, texts, ratio=args.ratio)
                pairs.append((cold, ask(first, texts, ratio=args.ratio)))
            spent = {
                name: read_metric(second.url, f"ragboost_chunk_store_{name}_seconds_total")
                for name in ("load", "fill")
            }
            second.stop()
            second.start()
            second.complete([5] * 64, "warm-up")
            again = [ask(second, texts, ratio=args.ratio) for texts in requests[:2]]
    colds, warms = [cold for cold, _ in pairs], [warm for _, warm in pairs]
    alike = [pair for pair in pairs if pair[0].loaded_tokens == pair[1].loaded_tokens]
    return {
        "store": args.store,
        "engine": kind,
        "workers": args.workers,
        "documents_stored": outcome.num_stored,
        "document_tokens": sum(lengths),
        "loaded_share": _share(colds, lengths),
        "loaded_share_first": _share(colds[:1], lengths),
        "loaded_share_restarted": _share(again, lengths),
        "ttft_s": statistics.median(cold.seconds for cold in colds),
        "ttft_to_warm": statistics.median(cold.seconds for cold in colds)
        / statistics.median(warm.seconds for warm in warms),
        "cpu_s": statistics.median(cold.cpu_seconds for cold in colds),
        "cpu_to_warm": statistics.median(cold.cpu_seconds for cold in colds)
        / statistics.median(warm.cpu_seconds for warm in warms),
        "load_s": spent["load"] / len(pairs),
        "fill_s": spent["fill"] / len(pairs),
        "num_compared": len(alike),
        "max_logprob_difference": max((_difference(*pair) for pair in alike), default=None),
    }


def _difference(one: RemoteAnswer, other: RemoteAnswer) -> float:
    both = one.logprobs.keys() & other.logprobs.keys()
    return max(abs(one.logprobs[token] - other.logprobs[token]) for token in both)


def _share(answers: list[RemoteAnswer], lengths: list[int]) -> float:
    loaded = [
        min(answer.loaded_tokens, length) for answer, length in zip(answers, lengths, strict=False)
    ]
    return sum(loaded) / sum(lengths[: len(answers)])


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--store", choices=("redis", "mooncake"), default="redis")
    parser.add_argument("--engine", choices=("vllm", "sglang"), default="vllm")
    parser.add_argument("--shape", choices=("tiny", "wide", "deep"), default="deep")
    parser.add_argument("--requests", type=int, default=6)
    parser.add_argument("--words", type=int, default=160, help="pairs of words in a document")
    parser.add_argument("--ratio", type=float, default=0.15, help="recompute ratio")
    parser.add_argument("--workers", type=int, default=1, help="ranks of each engine")
    args = parser.parse_args()
    exit_on_sigterm()
    if reason := missing(args.engine):
        sys.exit(reason)
    with make_store(args.store) as store:
        result = compare(args, store.url)
    report(result, args, show_figures)


if __name__ == "__main__":
    main()
