"""Replay a trace's beginning on real vLLM through the product, with arrival times scaled.

    python -m benchmarks.chunks.ragpulse_engine --data PATH --json

Arms as in `benchmarks.chunks.ragpulse`, each an engine with an empty cache behind a proxy of its
own: `plain`, nothing is changed; `order`, `ordering.move_varying` and the popularity tail; `reuse`;
`both`. Nothing is stored ahead: a document that a reusing request computed is. Texts have the
trace's lengths times `--scale`, in words of random text, which the model's tokenizer cuts further;
`--capacity-tokens` are those of the engine. The arms take turns, `--turn` consecutive requests at
a time: each is sent at its arrival, `--speed` times as fast, whether or not earlier ones were
answered, so that its TTFT includes waiting.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.command import make_parser, report, show_columns
from benchmarks.engines.served import Mode, Served, serve
from ragboost.chunk_cache.selection import DEFAULT_POLICY
from ragboost.evaluation.endpoint import ChatEndpoint
from ragboost.evaluation.streamed_answer import STREAMED
from ragboost.evaluation.trace_replay import TraceReplay
from ragboost.evaluation.traces import TraceRequest, read_trace
from scripts.http_client import CHAT, Body
from scripts.processes import exit_on_sigterm

MAX_MODEL_LEN = 16_384
_MOST_AT_ONCE = 64
_AS_SENT = {
    "ordering": {"enabled": False},
    "dedup": {"enabled": False},
    "hints": {"order": False, "location": False},
}
_MOVED = {"ordering": {"move_varying": True, "tail": "popularity"}}
_REUSES = {"backend": {"reuse_chunks": True}}
ARMS = ("plain", "order", "reuse", "both")


def make_modes(arms: Sequence[str], *, ratio: float, host_bytes: int, fill: str) -> dict[str, Mode]:
    chunks = {"host_bytes": host_bytes, "ratio": ratio, "fill": fill}
    modes = {
        "plain": Mode(_AS_SENT),
        "order": Mode(_MOVED),
        "reuse": Mode({**_AS_SENT, **_REUSES}, chunks),
        "both": Mode(_MOVED, chunks),  # its proxy asks for the recompute ratio, and buys
    }
    return {arm: modes[arm] for arm in arms}


def replay(
    served: Served, requests: Sequence[TraceRequest], bodies: Sequence[Body], *, speed: float
) -> None:
    """Send requests when they arrive, the first one now."""
    begin = time.perf_counter()
    with ThreadPoolExecutor(_MOST_AT_ONCE) as pool:
        futures = []
        for request, body in zip(requests, bodies, strict=True):
            due = begin + (request.arrival_s - requests[0].arrival_s) / speed
            time.sleep(max(0.0, due - time.perf_counter()))
            futures.append(pool.submit(served.send, CHAT, body))
        served.answers += [future.result() for future in futures]


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Replay the trace in all arms, and return their figures."""
    requests = read_trace(args.data, limit=args.requests)
    texts = TraceReplay(ChatEndpoint("http://unused", model="tiny"), max_tokens=1, scale=args.scale)
    bodies = [{**texts.payload(request), **STREAMED} for request in requests]
    reuse = {"ragboost": {"reuse": {"policy": DEFAULT_POLICY, "ratio": args.ratio}}}
    modes = make_modes(args.arms, ratio=args.ratio, host_bytes=args.host_bytes, fill=args.fill)
    with serve(
        modes,
        engine="vllm",
        cache_tokens=args.capacity_tokens,
        max_model_len=MAX_MODEL_LEN,
        shape=args.model,
    ) as served:
        for start in range(0, len(requests), args.turn):
            cut = slice(start, start + args.turn)
            for arm, mode in modes.items():
                extra = reuse if mode.chunks is not None else {}
                sent = [{**body, **extra} for body in bodies[cut]]
                replay(served[arm], requests[cut], sent, speed=args.speed)
            print(f"{min(cut.stop, len(requests))} of {len(requests)}", file=sys.stderr, flush=True)
        arms = {arm: served[arm].summary() for arm in modes}
    total = arms["plain"]["prompt_tokens"] if "plain" in arms else None
    named = {
        name: getattr(args, name) for name in ("ratio", "scale", "speed", "model", "turn", "fill")
    }
    return {
        "requests": len(requests),
        **named,
        "cache_tokens": args.capacity_tokens,
        "not_computed": {
            # Of the prompts as they stand: hints count as computed.
            arm: round(1 - figures["prefill_tokens"] / (total or figures["prompt_tokens"]), 4)
            for arm, figures in arms.items()
        },
        "ttft_median_s": {arm: figures["ttft_p50_ms"] / 1000 for arm, figures in arms.items()},
        "ttft_p95_s": {arm: figures["ttft_p95_ms"] / 1000 for arm, figures in arms.items()},
        "arms": arms,
    }


def show(result: dict[str, Any]) -> None:
    names = ("not_computed", "ttft_median_s", "ttft_p95_s")
    show_columns({arm: {n: result[n][arm] for n in names} for arm in result["arms"]})


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="a trace, or RAGPulse's folder")
    parser.add_argument("--requests", type=int, default=500, help="the first of the trace")
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=["plain", "order", "both"])
    parser.add_argument("--ratio", type=float, default=0.15, help="recompute ratio")
    parser.add_argument("--scale", type=float, default=0.25, help="words for a token of the trace")
    parser.add_argument("--speed", type=float, default=100.0, help="seconds of the trace a second")
    parser.add_argument("--turn", type=int, default=25, help="requests of an arm before the next")
    parser.add_argument("--capacity-tokens", type=int, default=69_632, help="prefix cache size")
    parser.add_argument("--host-bytes", type=int, default=2 << 30, help="size of the chunk store")
    parser.add_argument("--fill", choices=["faster", "always"], default="faster")
    parser.add_argument("--model", choices=["tiny", "wide", "deep"], default="deep")
    args: argparse.Namespace = parser.parse_args()
    exit_on_sigterm()
    report(measure(args), args, show)


if __name__ == "__main__":
    main()
