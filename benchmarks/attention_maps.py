"""Compare the tokens that policies recompute, and the attention that results, with full attention.

    python -m benchmarks.attention_maps --json
    python -m benchmarks.attention_maps --model benchmarks/second_model --json

The two observations of A3 (Fig. 2 and 3), on the cross-chunk tasks of `research.tasks`. `hit_rate`:
of the reused tokens to which the question attends most in full attention (mean over heads and
layers; as many as are recomputed), the share that a policy recomputes; `random` has about the
ratio. `loss[policy][layer]`: L2 distance between the question's attention after the policy and that
of full attention, both distributions over the prompt averaged over heads and question tokens;
`reuse` recomputes nothing.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from benchmarks.chunk_quality import MODEL, SPLITS
from ragboost.chunk_cache.core.reuse import ChunkReuse
from ragboost.chunk_cache.eval.cases import Case
from ragboost.chunk_cache.model.adapter import ModelAdapter
from ragboost.chunk_cache.model.attention.backend import AttentionInputs
from ragboost.chunk_cache.selection.view import attention_mass
from ragboost.chunk_cache.store.tiered import TieredStore
from research.tasks import TASKS, make_prompts

POLICIES = "reuse,random,epic,cacheblend,cacheblend-v,a3,fusionrag,mean-layers,gradual"


class QuestionAttention:
    """An observer that records the question's attention to each token, per layer."""

    def __init__(self, num_rows: int) -> None:
        self._num_rows = num_rows
        self.layers: list[torch.Tensor] = []  # (tokens,) each

    def __call__(self, layer: int, inputs: AttentionInputs) -> None:
        mass = attention_mass(inputs, num_rows=self._num_rows)
        self.layers.append(mass / (inputs.query.shape[1] * self._num_rows))


def look(
    reuse: ChunkReuse, case: Case, *, policy: str, ratio: float
) -> tuple[torch.Tensor, tuple[int, ...]]:
    """Return the question's attention, (layers, tokens), and the recomputed positions."""
    attention = QuestionAttention(len(case.question))
    found = reuse.prefill(
        case.system, case.chunks, case.question, policy=policy, ratio=ratio, observe=attention
    )
    return torch.stack(attention.layers), found.selected


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Measure all policies on the same prompts of all tasks that need other documents."""
    causal_lm = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32)
    adapter = ModelAdapter(causal_lm)
    policies = args.policies.split(",")
    hits: dict[str, list[float]] = {policy: [] for policy in policies}
    losses: dict[str, list[torch.Tensor]] = {policy: [] for policy in policies}
    for task in TASKS[1:]:
        for seed in SPLITS["test"]:
            reuse = ChunkReuse(adapter, TieredStore(host_bytes=1 << 28))
            for prompt in make_prompts(
                task, args.prompts, seed=seed, documents=args.documents, haystack=args.haystack
            ):
                case = prompt.case()
                reuse.precompute(case.system, case.chunks)
                truth, reused = look(reuse, case, policy="full", ratio=1.0)
                order = truth[:, list(reused)].mean(0).argsort(descending=True)
                best = torch.tensor(reused)[order]
                for policy in policies:
                    got, selected = look(reuse, case, policy=policy, ratio=args.ratio)
                    losses[policy].append((got - truth).norm(dim=1))
                    top = set(best[: len(selected)].tolist())
                    hits[policy].append(len(top & set(selected)) / max(1, len(selected)))
    return {
        "hit_rate": {p: round(sum(found) / len(found), 4) for p, found in hits.items()},
        "loss": {
            p: [round(value, 4) for value in torch.stack(found).mean(0).tolist()]
            for p, found in losses.items()
        },
        "prompts": len(hits[policies[0]]),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, default=MODEL, help="reference model")
    parser.add_argument("--prompts", type=int, default=10, help="prompts per task and seed")
    parser.add_argument("--documents", type=int, default=8, help="2 to 16 per prompt")
    parser.add_argument(
        "--haystack", type=int, default=0, help="documents of fillers alone among them"
    )
    parser.add_argument("--ratio", type=float, default=0.15, help="recompute ratio")
    parser.add_argument("--policies", default=POLICIES, help="comma-separated")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    begin = time.process_time()
    result = measure(args) | {"ratio": args.ratio, "model": args.model.name}
    result["cpu_s"] = round(time.process_time() - begin)
    if args.json:
        print(json.dumps(result))
        return
    for policy, rate in result["hit_rate"].items():
        print(f"{policy:14} hit rate {rate:.2f}, loss by layer {result['loss'][policy]}")


if __name__ == "__main__":
    main()
