"""Count the KV that a plain prefix cache and a chunk store hold and compute for the same requests
(FusionRAG 5.3.3).

    python -m benchmarks.chunks.tiers --only storage

1,000 requests with 60 % known, 30 % shared and 10 % unique chunks of equal length; nothing is
evicted. Known chunks belong to the knowledge base, all of which counts as stored; shared chunks are
uploaded on first use. The paper does not give the number of chunks, the chunks per request, or
their distribution: `ASSUMED` is our choice, `FITTED` reproduces all four of its figures.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

NUM_REQUESTS = 1000
SHARES = {"known": 0.6, "shared": 0.3, "unique": 0.1}


@dataclass(frozen=True, slots=True)
class Setting:
    """Distribution of the requests."""

    per_request: int = 5  # chunks drawn; duplicates count once
    known: int = 1000  # chunks
    shared: int = 300  # chunks
    exponent: float = 1.0  # of the Zipf law; 0 is uniform


ASSUMED = Setting()
FITTED = Setting(known=150, shared=750, exponent=0.0)
SEEDS = (0, 1, 2)

Chunk = tuple[str, int]


def requests(setting: Setting, seed: int) -> list[list[Chunk]]:
    """Draw the chunks of each request, without repetition."""
    rng = np.random.default_rng(seed)
    pools = {"known": setting.known, "shared": setting.shared}
    limits = {
        kind: np.cumsum(weights / weights.sum())
        for kind, size in pools.items()
        for weights in [1 / np.arange(1, size + 1) ** setting.exponent]
    }
    drawn = []
    for number in range(NUM_REQUESTS):
        kinds = rng.choice(list(SHARES), setting.per_request, p=list(SHARES.values())).tolist()
        places = rng.random(setting.per_request).tolist()
        chunks = [
            (kind, number * setting.per_request + i)
            if kind == "unique"
            else (kind, min(int(np.searchsorted(limits[kind], place)), pools[kind] - 1))
            for i, (kind, place) in enumerate(zip(kinds, places, strict=True))
        ]
        drawn.append(list(dict.fromkeys(chunks)))
    return drawn


def storage(setting: Setting, seed: int, *, ratio: float = 0.15) -> dict[str, float]:
    """Return the counts of stored and computed chunks; `ratio` is recomputed of chunks that are
    reused after another prefix."""
    chains: set[tuple[Chunk, ...]] = set()
    used: set[Chunk] = set()
    new: set[Chunk] = set()
    num_uses = num_common = 0
    for chunks in requests(setting, seed):
        num_uses += len(chunks)
        for stop in range(1, len(chunks) + 1):
            chunk, chain = chunks[stop - 1], tuple(chunks[:stop])
            num_common += chunk[0] != "unique" and chain not in chains
            chains.add(chain)
            used.add(chunk)
            if chunk[0] != "known":
                new.add(chunk)
    num_stored = setting.known + len(new)
    num_shared = sum(kind == "shared" for kind, _ in new)
    exact = num_uses - len(chains)
    work = len(new) + ratio * (num_uses - len(new) - exact)
    return {
        "uses": num_uses,
        "prefix_cache_chunks": len(chains),
        "prefix_cache_computes_common": num_common,
        "common_computations_saved": 1 - num_shared / num_common,
        "chunks_stored": num_stored,
        "storage_saved": 1 - num_stored / len(chains),
        "storage_saved_of_used": 1 - len(used) / len(chains),
        "hit_rate": 1 - len(new) / num_uses,
        "computations_saved": 1 - len(new) / len(chains),
        "computations_saved_at_15_percent": 1 - work / len(chains),
    }


def means(setting: Setting, seeds: Sequence[int] = SEEDS) -> dict[str, float]:
    """Return the means over seeds."""
    runs = [storage(setting, seed) for seed in seeds]
    return {name: round(float(np.mean([run[name] for run in runs])), 3) for name in runs[0]}


def two_settings() -> list[dict[str, Any]]:
    """Return the figures of the assumed and of the fitted setting."""
    return [
        {"setting": name} | means(setting)
        for name, setting in (("assumed", ASSUMED), ("fitted", FITTED))
    ]


def sweep() -> list[dict[str, Any]]:
    """Return the storage saved over the parameters that the paper does not give."""
    return [
        {
            "known": known,
            "exponent": exponent,
            **{
                f"{per_request} per request": means(
                    Setting(per_request=per_request, known=known, exponent=exponent), (0,)
                )["storage_saved"]
                for per_request in (3, 5, 8, 10, 20)
            },
        }
        for known, exponent in product((150, 300, 1000, 3000), (0.0, 1.0))
    ]
