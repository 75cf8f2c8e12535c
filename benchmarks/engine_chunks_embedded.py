"""Sustained reuse in the embedded engine's `ChunkReuse`; prints one JSON object."""

import argparse
import json
import time
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.sustained import CORPUS, draw_orders, summarise_sustained
from ragboost.chunk_cache.core.reuse import ChunkReuse
from ragboost.chunk_cache.model.adapter import ModelAdapter
from ragboost.chunk_cache.store.tiered import TieredStore

VOCABULARY = 4096
SYSTEM, QUESTION = 64, 24


def sustained(args: argparse.Namespace) -> dict[str, Any]:
    """Ask new questions over one corpus, half of which fits into the store; chunks enter it only
    out of these prompts."""
    num_chunks, _, size = CORPUS
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=512,
        intermediate_size=1408,
        num_hidden_layers=args.layers,
        num_attention_heads=8,
        num_key_value_heads=2,
        max_position_embeddings=4096,
    )
    dtype = torch.float32 if args.dtype == "float32" else torch.bfloat16
    chunk_bytes = args.layers * 2 * 2 * 64 * dtype.itemsize * size
    store = TieredStore(host_bytes=chunk_bytes * num_chunks // 2)
    reuse = ChunkReuse(ModelAdapter(LlamaForCausalLM(config).to(dtype)), store)
    system = torch.randint(10, VOCABULARY, (SYSTEM,)).tolist()
    chunks = torch.randint(10, VOCABULARY, (num_chunks, size)).tolist()
    reused: list[float] = []
    full: list[float] = []
    counts: list[dict[str, int]] = []
    for number, order in enumerate(draw_orders(args.questions)):
        question = torch.randint(10, VOCABULARY, (QUESTION,)).tolist()
        begin = time.process_time()
        told = reuse.prefill(system, [chunks[n] for n in order], question, ratio=0.15, keep=True)
        reused.append(time.process_time() - begin)
        counts.append(told.counts._asdict())
        if number % 10 == 0:
            other = torch.randint(10, VOCABULARY, (told.num_tokens,)).tolist()
            begin = time.process_time()
            reuse.prefill([], [], other)
            full.append(time.process_time() - begin)
    summary = summarise_sustained(reused, full, counts)
    return {**summary, "store_bytes": sum(tier.size_bytes for tier in store.memory)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("part", choices=("sustained",))
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--questions", type=int, default=1000)
    parser.add_argument("--dtype", default="bfloat16")
    args, _ = parser.parse_known_args()
    print(json.dumps(sustained(args)))


if __name__ == "__main__":
    main()
