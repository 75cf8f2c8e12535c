"""Replay independent requests on real engines: ordered, with stored documents reused, and both."""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.datasets.retrieval import load_requests
from benchmarks.engines.replays import completion, ratios, rounds, send_interleaved
from benchmarks.engines.served import Mode, Served, serve
from ragboost.chunk_cache.selection import DEFAULT_POLICY
from ragboost.types import Request

MAX_MODEL_LEN = 32_768
_CHUNKS = {"host_bytes": 2 << 30}
_UNORDERED = {"ordering": {"enabled": False}, "hints": {"order": False}}
MODES = {
    "plain": Mode(),
    "order": Mode(),
    "reuse": Mode(_UNORDERED, _CHUNKS),
    "order_reuse": Mode(chunks=_CHUNKS),
}


def measure_engine(args: argparse.Namespace) -> dict[str, Any]:
    """Serve an engine for each mode, send the workload to all of them, and return the figures."""
    workload, requests = load_requests(
        args.data, retriever=args.retriever, k=args.k, corpus=args.texts
    )
    with serve(
        MODES,
        engine=args.engine,
        cache_tokens=args.capacity_tokens,
        max_model_len=MAX_MODEL_LEN,
        shape=args.model,
    ) as served:
        figures = replay(served, requests[: args.requests], at_once=args.at_once, ratio=args.ratio)
    named = {name: getattr(args, name) for name in ("engine", "texts", "at_once", "model")}
    return {**named, "workload": workload.name, "cache_tokens": args.capacity_tokens, **figures}


def replay(
    served: Mapping[str, Served], requests: Sequence[Request], *, at_once: int, ratio: float
) -> dict[str, Any]:
    """Send the requests on arrival; engines that reuse chunks have stored their documents before.

    A mode gets `at_once` requests before the next mode gets its round.
    """
    reuse = {"policy": DEFAULT_POLICY, "ratio": ratio}
    stored = {mode: store_documents(served[mode], requests) for mode in ("reuse", "order_reuse")}
    bodies = {
        mode: [
            completion(request, boost=mode != "plain", reuse=reuse if mode in stored else None)
            for request in requests
        ]
        for mode in MODES
    }
    send_interleaved(served, {mode: rounds(sent, at_once) for mode, sent in bodies.items()})
    figures: dict[str, Any] = {mode: served[mode].summary() for mode in MODES}
    return {
        "requests": len(requests),
        "recompute_ratio": ratio,
        "stored_ahead": stored["reuse"],
        **figures,
        **{
            f"{mode}_{name}": value
            for mode in MODES
            if mode != "plain"
            for name, value in ratios(figures["plain"], figures[mode]).items()
        },
    }


def store_documents(served: Served, requests: Sequence[Request]) -> dict[str, Any]:
    """Let an engine store all documents of these requests, as `ragboost precompute` does."""
    documents = {each.key: each for request in requests for each in request.documents}
    with tempfile.TemporaryDirectory() as folder:
        corpus = Path(folder) / "corpus.jsonl"
        rows = ({"id": d.id, "title": d.title, "text": d.text} for d in documents.values())
        corpus.write_text("".join(json.dumps(row) + "\n" for row in rows))
        command = [sys.executable, "-m", "ragboost", "precompute", "--engine", served.engine_url]
        command += ["--corpus", str(corpus), "--top-n", "0", "--concurrency", "1", "--json"]
        done = subprocess.run(command, check=True, capture_output=True)
    served.reset()
    counts: dict[str, Any] = json.loads(done.stdout)
    return counts
