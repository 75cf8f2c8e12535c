"""Measure TTFT of the embedded engine by the share of the prompt in its prefix cache.

    python -m benchmarks.engines.prefix_ttft --json
    python -m benchmarks.engines.prefix_ttft --tokens 1000 --repeats 3

Requests go over HTTP on loopback and stream; the time is that of the first byte, in milliseconds.
"""

import json
import random
import statistics
import time
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console
from rich.table import Table

from benchmarks.command import make_parser, report
from ragboost.config import EngineSettings
from ragboost.engine import create_engine_app
from ragboost.serving import serve_in_thread

HITS = (0.0, 0.25, 0.5, 0.75, 0.9, 0.95)


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--model", type=Path, help="model directory; default: the built-in model")
    parser.add_argument("--tokens", type=int, default=4000, help="prompt length")
    parser.add_argument("--repeats", type=int, default=7, help="repeats per hit length")
    parser.add_argument("--num-threads", type=int, default=1, help="compute threads")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    result = measure(
        EngineSettings(
            model=args.model,
            num_threads=args.num_threads,
            capacity_tokens=args.tokens * (len(HITS) * args.repeats + 4),
        ),
        tokens=args.tokens,
        repeats=args.repeats,
        seed=args.seed,
    )
    report(result, args, show)


def measure(settings: EngineSettings, *, tokens: int, repeats: int, seed: int) -> dict[str, Any]:
    """Cache one prompt, and time prompts that share a prefix with it.

    The hit lengths alternate, so that noise affects all alike.

    Returns:
        `model`, `tokens`, `repeats` and `hits`: per hit length its share, `cached_tokens` as the
        engine reports them, medians `ttft_ms` (wall) and `cpu_ms` (all threads of server and
        client, up to the first byte), and `speedup` over a miss.
    """
    app = create_engine_app(settings)
    vocab = app.state.loaded.runner.vocab_size
    generator = random.Random(seed)
    samples: dict[float, list[tuple[float, float, int]]] = {hit: [] for hit in HITS}
    with serve_in_thread(app) as url, httpx.Client(base_url=url, timeout=600) as client:
        base = [generator.randrange(3, vocab) for _ in range(tokens)]
        first_token(client, base)
        first_token(client, base)  # the second request warms up the hit path
        for _ in range(repeats):
            for hit in HITS:
                known = base[: round(hit * tokens)]
                tail = [generator.randrange(3, vocab) for _ in range(tokens - len(known))]
                samples[hit].append(first_token(client, known + tail))
    cold = statistics.median(ttft for ttft, _, _ in samples[0.0])
    rows = []
    for hit, measured in samples.items():
        ttft = statistics.median(ttft for ttft, _, _ in measured)
        rows.append(
            {
                "hit": hit,
                "cached_tokens": measured[0][2],
                "ttft_ms": round(ttft * 1e3, 1),
                "cpu_ms": round(statistics.median(cpu for _, cpu, _ in measured) * 1e3, 1),
                "speedup": round(cold / ttft, 2),
            }
        )
    return {
        "model": app.state.loaded.name,
        "tokens": tokens,
        "repeats": repeats,
        "num_threads": settings.num_threads,
        "hits": rows,
    }


def first_token(client: httpx.Client, prompt: list[int]) -> tuple[float, float, int]:
    """Return wall and CPU seconds to the first byte of a streamed response, and cached tokens."""
    body = {
        "prompt": prompt,
        "max_tokens": 1,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    begin, begin_cpu = time.perf_counter(), time.process_time()
    with client.stream("POST", "/v1/completions", json=body) as reply:
        reply.raise_for_status()
        lines = reply.iter_lines()
        next(lines)
        ttft, cpu = time.perf_counter() - begin, time.process_time() - begin_cpu
        events = [line.removeprefix("data: ") for line in lines if line.startswith("data: {")]
    return ttft, cpu, json.loads(events[-1])["usage"]["prompt_tokens_details"]["cached_tokens"]


def show(result: dict[str, Any]) -> None:
    table = Table(title=f"{result['model']}, prompts of {result['tokens']:,} tokens")
    for name in ("hit", "cached tokens", "TTFT ms", "CPU ms", "speed-up"):
        table.add_column(name, justify="right")
    for row in result["hits"]:
        table.add_row(
            f"{row['hit']:.0%}",
            f"{row['cached_tokens']:,}",
            f"{row['ttft_ms']:.1f}",
            f"{row['cpu_ms']:.1f}",
            f"{row['speedup']:.2f}x",
        )
    Console().print(table)


if __name__ == "__main__":
    main()
