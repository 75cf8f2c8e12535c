"""Measure the cost of precomputing a corpus: time and bytes per token, by number of neighbours.

    python -m benchmarks.precompute --json

Uses a model with random weights and chunks of random tokens. Times are processor seconds of one
thread. `prefill_share` is the time per chunk relative to a plain prefill of the chunk after the
system prompt; 1 is the minimum.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.chunk_ttft import build
from ragboost.chunk_cache.core.reuse import ChunkReuse
from ragboost.chunk_cache.model.adapter import ModelAdapter
from ragboost.chunk_cache.precompute.catalog import ChunkCatalog
from ragboost.chunk_cache.precompute.corpus import CorpusChunk, precompute
from ragboost.chunk_cache.store.disk import DiskTier
from ragboost.chunk_cache.store.tiered import TieredStore

SYSTEM, CHUNK = 64, 256


def measure(adapter: ModelAdapter, *, num_chunks: int, top_n: int) -> dict[str, float]:
    """Precompute a corpus in which each chunk's neighbours are the preceding ones, in a ring."""
    generator = torch.Generator().manual_seed(0)

    def draw(length: int) -> tuple[int, ...]:
        return tuple(torch.randint(8192, (length,), generator=generator).tolist())

    system = draw(SYSTEM)
    chunks = [CorpusChunk(str(number), draw(CHUNK)) for number in range(num_chunks)]
    neighbours = [
        tuple((number - distance) % num_chunks for distance in range(top_n, 0, -1))
        for number in range(num_chunks)
    ]
    with tempfile.TemporaryDirectory() as name:
        catalog = ChunkCatalog(Path(name))
        begin = time.process_time()
        outcome = precompute(
            ChunkReuse(adapter, TieredStore(host_bytes=8 << 30)),
            DiskTier(Path(name), capacity_bytes=8 << 30),
            catalog,
            system=system,
            chunks=chunks,
            neighbours=neighbours,
            max_tokens=65_536,
        )
        seconds = time.process_time() - begin
    return {
        "top_n": top_n,
        "cpu_s_per_chunk": seconds / outcome.num_computed,
        "tokens_per_cpu_s": outcome.num_tokens / seconds,
        "bytes_per_token": catalog.size_bytes / outcome.num_tokens,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--chunks", type=int, default=24, help="chunks in the corpus")
    parser.add_argument("--layers", type=int, default=8, help="layers of the random model")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    torch.set_num_threads(1)
    adapter = build("small", layers=args.layers, device="cpu")
    measure(adapter, num_chunks=2, top_n=1)  # warm-up
    rows: list[dict[str, Any]] = [
        measure(adapter, num_chunks=args.chunks, top_n=top_n) for top_n in (0, 2, 5, 10, 15)
    ]
    for row in rows:
        row["prefill_share"] = row["cpu_s_per_chunk"] / rows[0]["cpu_s_per_chunk"]
    if args.json:
        print(json.dumps({"chunk_tokens": CHUNK, "rows": rows}))
        return
    table = Table(title=f"precomputing chunks of {CHUNK} tokens")
    for column in rows[0]:
        table.add_column(column)
    for row in rows:
        table.add_row(*(f"{value:.4g}" for value in row.values()))
    Console().print(table)


if __name__ == "__main__":
    main()
