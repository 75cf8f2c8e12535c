"""Replay independent requests on real engines: ordered, with stored documents reused, and both.

`both` rents or buys; `both_rent` reuses all that is not cached, since its proxy does not know the
recompute ratio.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.chunks.served import draw
from benchmarks.datasets.retrieval import load_requests
from benchmarks.engines.replays import completion, ratios, rounds, send_interleaved
from benchmarks.engines.served import Mode, Served, serve
from ragboost.chunk_cache.selection import DEFAULT_POLICY
from ragboost.types import Request

MAX_MODEL_LEN = 32_768
_UNORDERED = {"ordering": {"enabled": False}, "hints": {"order": False}}
_RENT = {"backend": {"reuse_chunks": True}}
REUSING = ("reuse", "both_rent", "both")
ARMS = ("plain", "order", *REUSING)


def make_modes(arms: Sequence[str], ratio: float) -> dict[str, Mode]:
    """Return these arms; stored chunks are recomputed at this ratio."""
    chunks = {"host_bytes": 2 << 30, "ratio": ratio}
    settings: dict[str, dict[str, Any]] = {
        "reuse": {**_UNORDERED, **_RENT},
        "both_rent": _RENT,
    }
    return {arm: Mode(settings.get(arm, {}), chunks if arm in REUSING else None) for arm in arms}


def measure_engine(args: argparse.Namespace) -> dict[str, Any]:
    """Serve an engine for each mode, send the workload to all of them, and return the figures."""
    name, requests = load(args)
    if args.disjoint:
        requests = [disjoint(request, number) for number, request in enumerate(requests)]
    with serve(
        make_modes(args.arms, args.ratio),
        engine=args.engine,
        cache_tokens=args.capacity_tokens,
        max_model_len=MAX_MODEL_LEN,
        shape=args.model,
    ) as served:
        figures = replay(served, requests, at_once=args.at_once, ratio=args.ratio)
    named = {
        name: getattr(args, name)
        for name in ("engine", "texts", "at_once", "model", "hot", "disjoint")
    }
    return {**named, "workload": name, "cache_tokens": args.capacity_tokens, **figures}


def load(args: argparse.Namespace) -> tuple[str, list[Request]]:
    """Return the requests of a retrieval workload, or drawn ones without data."""
    if args.data is None:
        turns = draw(args.requests, k=args.k, corpus=args.corpus, seed=1)
        return f"drawn, {args.corpus} documents", [Request(*turn) for turn in turns]
    workload, requests = load_requests(
        args.data, retriever=args.retriever, k=args.k, corpus=args.texts
    )
    if args.hot is not None:
        requests = about_hot_documents(requests, args.hot)
    return workload.name, requests[: args.requests]


def about_hot_documents(requests: Sequence[Request], num: int) -> list[Request]:
    """Return the requests with one of the most frequent documents."""
    counts = Counter(document.key for request in requests for document in request.documents)
    hot = {key for key, _ in counts.most_common(num)}
    return [each for each in requests if not hot.isdisjoint(d.key for d in each.documents)]


def replay(
    served: Mapping[str, Served], requests: Sequence[Request], *, at_once: int, ratio: float
) -> dict[str, Any]:
    """Send the requests on arrival; engines that reuse chunks have stored their documents before.

    A mode gets `at_once` requests before the next mode gets its round.
    """
    reuse: dict[str, Any] = {"policy": DEFAULT_POLICY}
    stored = {arm: store_documents(served[arm], requests) for arm in REUSING if arm in served}
    options = {**dict.fromkeys(REUSING, reuse), "both": {**reuse, "ratio": ratio}}
    bodies = {
        arm: [
            completion(request, boost=arm != "plain", reuse=options.get(arm))
            for request in requests
        ]
        for arm in served
    }
    send_interleaved(served, {arm: rounds(sent, at_once) for arm, sent in bodies.items()})
    arms: dict[str, Any] = {arm: served[arm].summary() for arm in served}
    first = next(iter(arms.values()))  # plain, unless it is left out
    return {
        "requests": len(requests),
        "recompute_ratio": ratio,
        "stored_ahead": stored.get("both"),
        "computed_tokens": {arm: figures["prefill_tokens"] for arm, figures in arms.items()},
        "hit_rate": {arm: figures["hit_rate"] for arm, figures in arms.items()},
        "ttft_median_s": {arm: figures["ttft_p50_ms"] / 1000 for arm, figures in arms.items()},
        "ttft_ratio": {arm: ratios(first, arms[arm])["ttft_ratio"] for arm in served},
        "arms": arms,
    }


def disjoint(request: Request, number: int) -> Request:
    """Return a request with documents of its own."""
    documents = [
        replace(each, id=f"{number}-{each.id}", text=f"{number}. {each.text}")
        for each in request.documents
    ]
    return replace(request, documents=tuple(documents))


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
