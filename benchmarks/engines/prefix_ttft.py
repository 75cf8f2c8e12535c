"""Measure TTFT of the embedded engine by the share of the prompt in its prefix cache.

    python -m benchmarks.engines.prefix_ttft --json
    python -m benchmarks.engines.prefix_ttft --tokens 1000 --repeats 3

Requests go over HTTP on loopback and stream; the time is that of the first token, in milliseconds.
"""

import random
import statistics
from typing import Any

import httpx
import torch

from benchmarks.command import make_parser, model_directory, report, show_rows
from ragboost.config import EngineSettings
from ragboost.engine import create_engine_app
from ragboost.proxy.serving import serve_in_thread
from scripts.http_client import COMPLETIONS, Answer, ask

HITS = (0.0, 0.25, 0.5, 0.75, 0.9, 0.95)


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument(
        "--model", type=model_directory, help="name or directory; default: the built-in model"
    )
    parser.add_argument("--tokens", type=int, default=4000, help="prompt length")
    parser.add_argument("--repeats", type=int, default=7, help="repeats per hit length")
    parser.add_argument("--num-threads", type=int, default=1, help="compute threads")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.num_threads)
    result = measure(
        EngineSettings(
            model=args.model,
            capacity_tokens=args.tokens * (len(HITS) * args.repeats + 4),
        ),
        tokens=args.tokens,
        repeats=args.repeats,
        seed=args.seed,
    )
    report(result, args, show)


def measure(settings: EngineSettings, *, tokens: int, repeats: int, seed: int) -> dict[str, Any]:
    """Cache one prompt, and time prompts that share a prefix with it.

    The hit lengths alternate, so that noise affects all alike. `cpu_ms` is of all threads of server
    and client, up to the first token; `speedup` is over a miss.
    """
    app = create_engine_app(settings)
    vocab = app.state.loaded.runner.vocab_size
    generator = random.Random(seed)
    samples: dict[float, list[Answer]] = {hit: [] for hit in HITS}
    with serve_in_thread(app) as url, httpx.Client(base_url=url, timeout=600) as client:

        def first_token(prompt: list[int]) -> Answer:
            return ask(client, COMPLETIONS, {"prompt": prompt, "max_tokens": 1})

        base = [generator.randrange(3, vocab) for _ in range(tokens)]
        first_token(base)
        first_token(base)  # the second request warms up the hit path
        for _ in range(repeats):
            for hit in HITS:
                prefix = base[: round(hit * tokens)]
                tail = [generator.randrange(3, vocab) for _ in range(tokens - len(prefix))]
                samples[hit].append(first_token(prefix + tail))
    cold = statistics.median(answer.ttft_s for answer in samples[0.0])
    rows = []
    for hit, answers in samples.items():
        ttft = statistics.median(answer.ttft_s for answer in answers)
        rows.append(
            {
                "hit": hit,
                "cached_tokens": answers[0].cached_tokens,
                "ttft_ms": round(ttft * 1e3, 1),
                "cpu_ms": round(statistics.median(answer.cpu_s for answer in answers) * 1e3, 1),
                "speedup": round(cold / ttft, 2),
            }
        )
    return {
        "model": app.state.loaded.name,
        "tokens": tokens,
        "repeats": repeats,
        "num_threads": torch.get_num_threads(),
        "hits": rows,
    }


def show(result: dict[str, Any]) -> None:
    show_rows(result["hits"], f"{result['model']}, prompts of {result['tokens']:,} tokens")


if __name__ == "__main__":
    main()
