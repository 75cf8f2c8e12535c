"""Measure the effect of 8-bit chunk KV storage on answer quality and on size.

    python -m benchmarks.chunk_codecs --json

Uses the reference model and the tasks of chunk_quality. Every chunk passes through the disk tier's
codec before use. Reported per codec: `score`, the accuracy over all tasks by policy; `kl`, the
divergence from full attention by policy; `change_kl`, the divergence from plain storage with all
else equal; `same_answer`, the share of answers equal to those of plain storage; `bytes_per_token`.
"""

import argparse
import json
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from benchmarks.chunk_quality import MODEL
from ragboost.chunk_cache.core.reuse import ChunkReuse
from ragboost.chunk_cache.eval.runner import evaluate
from ragboost.chunk_cache.model.adapter import ModelAdapter
from ragboost.chunk_cache.store.chunk import ChunkKV
from ragboost.chunk_cache.store.codec import CODECS, pack, unpack
from ragboost.chunk_cache.store.files import encode
from ragboost.chunk_cache.store.tiered import TieredStore
from research.tasks import TASKS, make_prompts


class PackedStore(TieredStore):
    """Chunk store whose KV makes a round trip through a codec."""

    def __init__(self, codec: str) -> None:
        super().__init__(host_bytes=1 << 28)
        self._codec = codec
        self.num_bytes = self.num_tokens = 0

    def put(self, key: str, chunk: ChunkKV) -> bool:
        self.num_bytes += len(encode(key, chunk, codec=self._codec))
        self.num_tokens += len(chunk.tokens)
        layers = tuple(
            unpack(pack(layer, self._codec), dtype=layer[0].dtype) for layer in chunk.layers
        )
        packed = ChunkKV(
            chunk.tokens,
            chunk.base,
            layers,
            chunk.regime,
            chunk.length,
            exact_after=chunk.exact_after,
        )
        return super().put(key, packed)


def measure(codec: str, *, prompts: int, seed: int, policies: list[str]) -> dict[str, Any]:
    """Return the scores of one codec and the logits of every prompt."""
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    store = PackedStore(codec)
    reuse = ChunkReuse(ModelAdapter(model), store)
    rows, logits = [], []
    for task in TASKS:
        drawn = [prompt.case() for prompt in make_prompts(task, prompts, seed=seed)]
        rows += evaluate(reuse, drawn, policies=policies, ratios=[0.15])
        for case in drawn:
            result = reuse.prefill(
                case.system, case.chunks, case.question, policy=policies[0], ratio=0.15
            )
            logits.append(result.logits.double().log_softmax(-1))
    named = {policy: [row for row in rows if row.policy == policy] for policy in policies}
    return {
        "score": {k: round(sum(r.score for r in v) / len(v), 4) for k, v in named.items()},
        "kl": {k: round(sum(r.kl for r in v) / len(v), 4) for k, v in named.items()},
        "bytes_per_token": round(store.num_bytes / store.num_tokens),
        "logits": torch.stack(logits),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prompts", type=int, default=40, help="prompts per task")
    parser.add_argument("--seed", type=int, default=201)
    parser.add_argument(
        "--policies", nargs="+", default=["gradual", "reuse"], help="selection policies"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    result = {
        codec: measure(codec, prompts=args.prompts, seed=args.seed, policies=args.policies)
        for codec in CODECS
    }
    plain = result["plain"]["logits"]
    for figures in result.values():
        other = figures.pop("logits")
        figures["change_kl"] = float(f"{(plain.exp() * (plain - other)).sum(-1).mean():.2e}")
        figures["same_answer"] = round(
            float((plain.argmax(-1) == other.argmax(-1)).double().mean()), 4
        )
    if args.json:
        print(json.dumps(result))
    else:
        for codec, figures in result.items():
            print(codec, figures)


if __name__ == "__main__":
    main()
