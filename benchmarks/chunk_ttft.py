"""Time to first token with reused chunks, against a full prefill of the same prompt.

    python -m benchmarks.chunk_ttft --tokens 2000,4000,8000 --json
    python -m benchmarks.chunk_ttft --tokens 8192,16384,32768 --device cuda --shape 7b --json

Timing needs no trained weights: the model is random. On a CPU the processor time of the process
counts, which other processes disturb less than the clock; on an accelerator the clock,
synchronised. Selection is included. `ratio[tokens][recompute]` is full prefill / reuse,
`assembly_share` the part of a full prefill that putting the stored KV together takes.
"""

import argparse
import json
import platform
import time
from collections.abc import Callable
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.cache_utils import DynamicCache

from ragboost.chunk_cache.adapter import ModelAdapter
from ragboost.chunk_cache.reuse import ChunkReuse
from ragboost.chunk_cache.selection import DEFAULT_POLICY, POLICIES
from ragboost.chunk_cache.store import ChunkStore

SHAPES: dict[str, dict[str, int]] = {
    "small": {
        "hidden_size": 512,
        "intermediate_size": 1376,
        "num_hidden_layers": 32,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "vocab_size": 8192,
    },
    "7b": {
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "vocab_size": 152064,
    },
}
SYSTEM, CHUNK, QUESTION = 64, 256, 32


def build(shape: str, *, layers: int | None, device: str) -> ModelAdapter:
    torch.manual_seed(0)
    options = dict(SHAPES[shape])
    if layers is not None:
        options["num_hidden_layers"] = layers
    config = AutoConfig.for_model("qwen2", max_position_embeddings=65_536, **options)
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    return ModelAdapter(model)


def best(run: Callable[[], Any], *, repeats: int, device: str) -> float:
    """Return the least time of some runs, seconds."""
    return best_of_turns({"": run}, repeats=repeats, device=device)[""]


def best_of_turns(
    runs: dict[str, Callable[[], Any]], *, repeats: int, device: str
) -> dict[str, float]:
    """Return the least time of each, seconds. They take turns: a busy machine disturbs all."""
    clock = time.process_time if device == "cpu" else time.perf_counter
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeats):
        for name, run in runs.items():
            if device != "cpu":
                torch.cuda.synchronize()
            begin = clock()
            run()
            if device != "cpu":
                torch.cuda.synchronize()
            times[name].append(clock() - begin)
    return {name: min(found) for name, found in times.items()}


def measure(adapter: ModelAdapter, num_tokens: int, args: argparse.Namespace) -> dict[str, Any]:
    vocabulary = int(adapter.config.vocab_size)
    count = max(2, round((num_tokens - SYSTEM - QUESTION) / CHUNK))
    generator = torch.Generator().manual_seed(num_tokens)

    def draw(length: int) -> list[int]:
        ids: list[int] = torch.randint(vocabulary, (length,), generator=generator).tolist()
        return ids

    system, chunks, question = draw(SYSTEM), [draw(CHUNK) for _ in range(count)], draw(QUESTION)
    reuse = ChunkReuse(adapter, ChunkStore(capacity_bytes=1 << 36), backend=args.backend)
    reuse.precompute(system, chunks)
    ids = torch.tensor([[*system, *(t for c in chunks for t in c), *question]])
    ids = ids.to(adapter.device)

    def full() -> None:
        with torch.no_grad():
            adapter.model(ids, past_key_values=DynamicCache(), use_cache=True, logits_to_keep=1)

    def reused(ratio: float) -> None:
        reuse.prefill(
            system,
            chunks,
            question,
            policy=args.policy,
            ratio=ratio,
            granularity=args.granularity,
        )

    runs: dict[str, Callable[[], Any]] = {
        "full": full,
        "assembly": lambda: reuse.assemble(system, chunks, question),
    }
    for ratio in args.ratios:
        runs[f"{ratio:g}"] = lambda ratio=ratio: reused(ratio)
    if args.device != "cpu":
        best_of_turns(runs, repeats=1, device=args.device)
    seconds = best_of_turns(runs, repeats=args.repeats, device=args.device)
    full_s, assembly_s = seconds.pop("full"), seconds.pop("assembly")
    return {
        "prompt_tokens": ids.shape[1],
        "full_s": round(full_s, 4),
        "assembly_s": round(assembly_s, 4),
        "reuse_s": {ratio: round(value, 4) for ratio, value in seconds.items()},
        "ratio": {ratio: round(full_s / value, 2) for ratio, value in seconds.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tokens", default="2000,4000,8000")
    parser.add_argument("--ratios", default="0,0.05,0.15,0.3")
    parser.add_argument("--policy", choices=POLICIES, default=DEFAULT_POLICY)
    parser.add_argument("--granularity", type=int, default=1)
    parser.add_argument("--backend", default="tiled")
    parser.add_argument("--shape", choices=SHAPES, default="small")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.device != "cpu" and not torch.cuda.is_available():
        parser.error(f"--device {args.device}: no accelerator is available here")
    args.ratios = [float(ratio) for ratio in args.ratios.split(",")]
    adapter = build(args.shape, layers=args.layers, device=args.device)
    found = {tokens: measure(adapter, int(tokens), args) for tokens in args.tokens.split(",")}
    result = {
        "ratio": {tokens: one["ratio"] for tokens, one in found.items()},
        "assembly_share": {
            tokens: round(one["assembly_s"] / one["full_s"], 4) for tokens, one in found.items()
        },
        "policy": args.policy,
        "granularity": args.granularity,
        "backend": args.backend,
        "parameters": sum(p.numel() for p in adapter.model.parameters()),
        "layers": adapter.num_layers,
        "device": args.device,
        "machine": platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "seconds": found,
    }
    if args.json:
        print(json.dumps(result))
        return
    for tokens, one in found.items():
        share = result["assembly_share"][tokens]
        print(f"{one['prompt_tokens']} tokens: full prefill {one['full_s']:.2f} s, ", end="")
        print(f"assembly {100 * share:.1f} % of it")
        for ratio, value in one["ratio"].items():
            print(f"  recompute {ratio:>4}: {one['reuse_s'][ratio]:.3f} s, {value:.2f}x")


if __name__ == "__main__":
    main()
