"""Measure the cost of precomputing a corpus: time and bytes per token, by number of neighbours.

    python -m benchmarks.chunks.precompute --json

Uses a model with random weights and chunks of random tokens. Times are processor seconds of one
thread. `prefill_share` is the time per chunk relative to a plain prefill of the chunk after the
system prompt; 1 is the minimum.
"""

import time
from typing import Any

import torch

from benchmarks.chunks.ttft import build
from benchmarks.command import make_parser, report, show_rows
from ragboost.chunk_cache.core.reuse import ChunkReuse
from ragboost.chunk_cache.eval.prime import prime
from ragboost.chunk_cache.model.adapter import ModelAdapter
from ragboost.chunk_cache.store.tiered import TieredStore

SYSTEM, CHUNK = 64, 256


def measure(adapter: ModelAdapter, *, num_chunks: int, top_n: int) -> dict[str, float]:
    """Precompute a corpus in which each chunk's neighbours are the preceding ones, in a ring."""
    generator = torch.Generator().manual_seed(0)

    def draw(length: int) -> tuple[int, ...]:
        return tuple(torch.randint(8192, (length,), generator=generator).tolist())

    system = draw(SYSTEM)
    chunks = [draw(CHUNK) for _ in range(num_chunks)]
    reuse = ChunkReuse(adapter, TieredStore(host_bytes=8 << 30))
    begin, size_bytes = time.process_time(), 0
    for number, chunk in enumerate(chunks):
        near = [chunks[(number - distance) % num_chunks] for distance in range(top_n, 0, -1)]
        kv = prime(reuse, system, chunk, neighbours=[each for each in near if each != chunk])
        size_bytes += kv.size_bytes
    seconds = time.process_time() - begin
    num_tokens = num_chunks * CHUNK
    return {
        "top_n": top_n,
        "cpu_s_per_chunk": seconds / num_chunks,
        "tokens_per_cpu_s": num_tokens / seconds,
        "bytes_per_token": size_bytes / num_tokens,
    }


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--chunks", type=int, default=24, help="chunks in the corpus")
    parser.add_argument("--layers", type=int, default=8, help="layers of the random model")
    args = parser.parse_args()
    torch.set_num_threads(1)
    adapter = build("small", layers=args.layers, device="cpu")
    measure(adapter, num_chunks=2, top_n=1)  # warm-up
    rows: list[dict[str, Any]] = [
        measure(adapter, num_chunks=args.chunks, top_n=top_n) for top_n in (0, 2, 5, 10, 15)
    ]
    for row in rows:
        row["prefill_share"] = row["cpu_s_per_chunk"] / rows[0]["cpu_s_per_chunk"]
    report({"chunk_tokens": CHUNK, "rows": rows}, args, show)


def show(result: dict[str, Any]) -> None:
    rows = [{name: f"{value:.4g}" for name, value in row.items()} for row in result["rows"]]
    show_rows(rows, f"precomputing chunks of {CHUNK} tokens")


if __name__ == "__main__":
    main()
