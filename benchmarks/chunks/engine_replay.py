"""Replay independent requests on real engines: ordered, with stored documents reused, and both.

`both` rents or buys; `both_rent` reuses all that is not cached, since its proxy does not know the
recompute ratio.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
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
_KEEP_S = 20.0  # between two writings of the figures so far
_UNORDERED = {"ordering": {"enabled": False}, "hints": {"order": False}}
_RENT = {"backend": {"reuse_chunks": True}}
REUSING = ("reuse", "both_rent", "both")
ARMS = ("plain", "order", *REUSING)


def make_modes(arms: Sequence[str], ratio: float, fill: str) -> dict[str, Mode]:
    """Return these arms; stored chunks are recomputed at this ratio."""
    chunks = {"host_bytes": 2 << 30, "ratio": ratio, "fill": fill}
    settings: dict[str, dict[str, Any]] = {
        "reuse": {**_UNORDERED, **_RENT},
        "both_rent": _RENT,
    }
    return {arm: Mode(settings.get(arm, {}), chunks if arm in REUSING else None) for arm in arms}


def measure_engine(args: argparse.Namespace) -> dict[str, Any]:
    """Send the workload to an engine for each arm, side by side or one after another."""
    workload, requests = load(args)
    if args.disjoint:
        requests = [disjoint(request, number) for number, request in enumerate(requests)]
    facts = {
        **{name: getattr(args, name) for name in ("engine", "texts", "k", "at_once", "model")},
        **{name: getattr(args, name) for name in ("hot", "disjoint", "one_by_one", "fill")},
        "workload": workload,
        "requests": len(requests),
        "cache_tokens": args.capacity_tokens,
        "recompute_ratio": args.ratio,
    }
    arms: dict[str, Any] = {}  # figures so far
    kept_at = time.monotonic()

    def keep(*, now: bool = False) -> None:
        nonlocal kept_at
        if now or (args.keep and time.monotonic() - kept_at > _KEEP_S):
            arms.update(summaries(served))
            kept_at = time.monotonic()
            if args.keep:
                args.keep.write_text(json.dumps({**facts, **compare(arms)}))

    for group in [[arm] for arm in args.arms] if args.one_by_one else [args.arms]:
        with serve(
            make_modes(group, args.ratio, args.fill),
            engine=args.engine,
            cache_tokens=args.capacity_tokens,
            max_model_len=MAX_MODEL_LEN,
            shape=args.model,
        ) as served:
            replay(served, requests, at_once=args.at_once, ratio=args.ratio, after_round=keep)
            keep(now=True)
    return {**facts, **compare(arms)}


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
    served: Mapping[str, Served],
    requests: Sequence[Request],
    *,
    at_once: int,
    ratio: float,
    after_round: Callable[[], object],
) -> None:
    """Send the requests on arrival; engines that reuse chunks have stored their documents before.

    A mode gets `at_once` requests before the next mode gets its round.
    """
    reuse: dict[str, Any] = {"policy": DEFAULT_POLICY}
    for arm in served:
        if arm in REUSING:
            store_documents(served[arm], requests)
    options = {**dict.fromkeys(REUSING, reuse), "both": {**reuse, "ratio": ratio}}
    bodies = {
        arm: [
            completion(request, boost=arm != "plain", reuse=options.get(arm))
            for request in requests
        ]
        for arm in served
    }
    by_arm = {arm: rounds(sent, at_once) for arm, sent in bodies.items()}
    send_interleaved(served, by_arm, after_round=after_round)


def summaries(served: Mapping[str, Served]) -> dict[str, Any]:
    """Return the figures so far of the arms that have any; TTFT needs two answers."""
    return {arm: served[arm].summary() for arm in served if len(served[arm].answers) > 1}


def compare(arms: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures by arm; those of a cut run are of each arm's own number of requests."""
    first = next(iter(arms), "")  # plain, unless it is left out
    return {
        "computed_tokens": {arm: figures["prefill_tokens"] for arm, figures in arms.items()},
        "hit_rate": {arm: figures["hit_rate"] for arm, figures in arms.items()},
        "steady_hit_rate": {arm: figures["steady_hit_rate"] for arm, figures in arms.items()},
        "ttft_median_s": {arm: figures["ttft_p50_ms"] / 1000 for arm, figures in arms.items()},
        "engine_cpu_s": {arm: figures["engine_cpu_s"] for arm, figures in arms.items()},
        "ttft_ratio": {arm: ratios(arms[first], arms[arm])["ttft_ratio"] for arm in arms},
        "arms": arms,
    }


def disjoint(request: Request, number: int) -> Request:
    """Return a request with documents of its own."""
    documents = [
        replace(each, id=f"{number}-{each.id}", text=f"{number}. {each.text}")
        for each in request.documents
    ]
    return replace(request, documents=tuple(documents))


def store_documents(served: Served, requests: Sequence[Request]) -> None:
    """Let an engine store all documents of these requests, as `ragboost precompute` does."""
    documents = {each.key: each for request in requests for each in request.documents}
    with tempfile.TemporaryDirectory() as folder:
        corpus = Path(folder) / "corpus.jsonl"
        rows = ({"id": d.id, "title": d.title, "text": d.text} for d in documents.values())
        corpus.write_text("".join(json.dumps(row) + "\n" for row in rows))
        command = [sys.executable, "-m", "ragboost", "precompute", "--engine", served.engine_url]
        command += ["--corpus", str(corpus), "--top-n", "0", "--concurrency", "1", "--json"]
        subprocess.run(command, check=True, capture_output=True)
    served.reset()
