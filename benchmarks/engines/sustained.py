"""The workload of sustained reuse: new questions over one corpus, and what is left of the gain.

Knows numbers of chunks, seconds and counts. Does not know engines.
"""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import torch

CORPUS = (120, 12, 160)
"""Chunks of the corpus, chunks of a prompt, and tokens of a chunk: prompts of 2,008 tokens."""
WINDOW = 50
ORIGINS = ("exact", "reused", "recomputed", "computed")


def draw_orders(questions: int) -> list[list[int]]:
    """Return the chunks of each question. A few are asked for often, most of them rarely (Zipf)."""
    num_chunks, used, _ = CORPUS
    weights = torch.tensor([1.0 / (rank + 1) for rank in range(num_chunks)])
    generator = torch.Generator().manual_seed(0)
    return [
        torch.multinomial(weights, used, generator=generator).tolist() for _ in range(questions)
    ]


def summarise_sustained(
    reused: Sequence[float], full: Sequence[float], counts: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Compare the speed-up of the last reusing questions with that of the first, by the seconds of
    each question, those of full prefills, and the origins of each prompt's tokens."""
    ordinary, window = statistics.median(full), min(WINDOW, len(reused) // 4)
    filled = [n for n, count in enumerate(counts) if count["reused"]]
    warm = [reused[n] for n in filled]
    if not warm:
        return {"sustained": None, "reused_share": 0.0}
    speed = [ordinary / statistics.mean(part) for part in (warm[:window], warm[-window:])]
    tokens = sum(count[name] for count in counts for name in ORIGINS)
    return {
        "sustained": round(speed[1] / speed[0], 3),
        "sustained_speedup": [round(value, 2) for value in speed],
        "reused_requests": [
            sum(n < window for n in filled),
            sum(n >= len(reused) - window for n in filled),
        ],
        "reused_share": round(sum(count["reused"] for count in counts) / tokens, 3),
    }
