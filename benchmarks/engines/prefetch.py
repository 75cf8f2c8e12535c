"""Measure what announcing a waiting request's documents brings, in a real vLLM behind the proxy.

    python -m benchmarks.engines.prefetch --json

The backend takes one request at a time, and decodes one while another waits in the proxy, whose
documents are in Redis only. By turns the proxy announces them meanwhile, and does not.

- `loaded_ahead`: of the four documents of each turn, how many were loaded before the backend became
  free: when about half of the other request's tokens were there; `became`: what had become of the
  announcement by then, and of the chunks that the store was asked for.
- `wait_s`: median time from the last of these tokens to the waiting request's first.
"""

import argparse
import statistics
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, NamedTuple
from unittest.mock import patch

import httpx
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.command import make_parser, report, show_figures
from benchmarks.engines.chunks_remote import make_documents, make_store
from ragboost.chunk_cache.http.chunk_client import ChunkClient
from ragboost.chunk_cache.http.precompute import prepare
from ragboost.config import Settings
from ragboost.context import render_document
from ragboost.proxy.app import create_app
from ragboost.proxy.upstream.chunk_reuse import ChunkReuseProbe
from ragboost.serving import serve_in_thread
from ragboost.types import Document
from scripts.processes import exit_on_sigterm
from tests.engines.servers import EngineServer, missing
from tests.eventually import eventually

_PER_REQUEST = 4
_CHAT = "/v1/chat/completions"


_OUTCOMES = {  # metrics, and the label that says what became of it
    "ragboost_chunk_announcements_total": "result",
    "ragboost_chunk_store_loads_total": "outcome",
}


class Turn(NamedTuple):
    wait_s: float
    became: dict[str, int]  # announcements and chunks, by outcome
    reused: int  # tokens of the prompt


def count_outcomes(*urls: str) -> Counter[str]:
    """Return what became of announcements and chunks so far, by the proxy and the engine."""
    found: Counter[str] = Counter()
    for url in urls:
        for family in text_string_to_metric_families(httpx.get(f"{url}/metrics").text):
            for sample in family.samples:
                if sample.name in _OUTCOMES:
                    found[sample.labels[_OUTCOMES[sample.name]]] += int(sample.value)
    return found


def take_turn(
    client: httpx.Client, server: EngineServer, texts: dict[str, str], *, tokens: int
) -> Turn:
    """Let a request with documents wait for one that decodes."""
    server.clear_cache()
    documents = [{"id": name, "text": text} for name, text in texts.items()]
    body = {
        "model": "tiny",
        "max_tokens": 1,
        "messages": [{"role": "user", "content": "Which is worth most?"}],
        "ragboost": {"documents": documents, "reuse": "approx"},
    }
    running = {"model": "tiny", "max_tokens": tokens, "prompt": "One", "ignore_eos": True}
    urls = (str(client.base_url).rstrip("/"), server.url)
    before, became = count_outcomes(*urls), Counter[str]()
    with ThreadPoolExecutor(1) as threads:
        with client.stream("POST", "/v1/completions", json=running | {"stream": True}) as first:
            lines = first.iter_lines()
            next(lines)  # it runs
            answer = threads.submit(client.post, _CHAT, json=body)
            for number, _ in enumerate(lines):
                if number == tokens:  # every other line is empty
                    became = count_outcomes(*urls) - before
        free = time.perf_counter()
        usage = answer.result().json()["usage"]
        seconds = time.perf_counter() - free
    told = usage.get("ragboost", {})
    return Turn(seconds, dict(became), told.get("reused", 0) + told.get("recomputed", 0))


def measure(args: argparse.Namespace) -> dict[str, Any]:
    with ExitStack() as stack:
        store = stack.enter_context(make_store("redis"))
        # The last ones stay in the engine's memory, and nobody asks for them.
        count = _PER_REQUEST * (2 * args.turns + 1) + args.host_bytes // (16 << 20)
        texts = make_documents(count, words=args.words)
        documents = {str(number): text for number, text in enumerate(texts)}
        settings = {"remote": store.url, "host_bytes": args.host_bytes}
        server = EngineServer(
            "vllm", shape=args.shape, dtype="float32", events="off", chunks=settings
        )
        stack.enter_context(server)
        prompts = [
            render_document(Document(text, id=name), label=f"[Doc_{name}]")
            for name, text in documents.items()
        ]
        filler = ChunkClient(server.url)
        filler.check()
        prepare(
            filler, prompts, [[]] * len(prompts), system=None, concurrency=1,
            on_progress=lambda *_: None,
        )  # fmt: skip
        backend = {"url": server.url, "max_concurrency": 1}
        app = create_app(Settings(backend=backend))  # type: ignore[arg-type]
        url = stack.enter_context(serve_in_thread(app))
        client = stack.enter_context(httpx.Client(base_url=url, timeout=120))
        eventually(lambda: app.state.chunk_reuse.is_supported)
        turns: dict[bool, list[Turn]] = {True: [], False: []}
        names = list(documents)
        for number in range(2 * args.turns + 1):
            own = {name: documents[name] for name in names[number * 4 : number * 4 + 4]}
            is_announced = number % 2 == 0
            with ExitStack() as switched_off:
                if not is_announced:
                    never = patch.object(ChunkReuseProbe, "loads_ahead", return_value=False)
                    switched_off.enter_context(never)
                turn = take_turn(client, server, own, tokens=args.tokens)
            if number:  # the first one warms up
                turns[is_announced].append(turn)
    return {
        name: {
            "loaded_ahead": [turn.became.get("loaded", 0) for turn in found],
            "became": [turn.became for turn in found],
            "reused_tokens": sum(turn.reused for turn in found),
            "wait_s": statistics.median(turn.wait_s for turn in found),
        }
        for name, found in (("announced", turns[True]), ("not_announced", turns[False]))
    }


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--shape", choices=("tiny", "wide", "deep"), default="deep")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=400, help="of the request that decodes")
    parser.add_argument("--words", type=int, default=160, help="pairs of words in a document")
    parser.add_argument("--host-bytes", type=int, default=260 << 20)
    args = parser.parse_args()
    exit_on_sigterm()
    if reason := missing("vllm"):
        sys.exit(reason)
    report(measure(args), args, show_figures)


if __name__ == "__main__":
    main()
