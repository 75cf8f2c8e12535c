"""Measure time to first token with reused chunks against a full prefill of the same prompt.

    python -m benchmarks.chunk_ttft --tokens 2000,4000,8000 --json
    python -m benchmarks.chunk_ttft --tokens 8192,16384,32768 --device cuda --shape 7b --json

The model has random weights, which timing does not depend on. Times are seconds: processor time of
the process on a CPU, where it is less noisy than wall time; synchronised wall time on an
accelerator. Token selection is included. The variants alternate, with more repeats for shorter
prompts. `ratio[tokens][recompute]` is median full prefill / median reuse, with `--disk` also of KV
that is read from disk first; `assembly_share` is the time to assemble the stored KV as a share of a
full prefill.
"""

import argparse
import json
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.cache_utils import DynamicCache

from ragboost.chunk_cache.core.reuse import ChunkReuse
from ragboost.chunk_cache.model.adapter import ModelAdapter
from ragboost.chunk_cache.selection import DEFAULT_POLICY, POLICIES
from ragboost.chunk_cache.store.disk import DiskTier
from ragboost.chunk_cache.store.tiered import TieredStore

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


def timed(run: Callable[[], Any], *, device: str) -> float:
    """Return the seconds of a run: processor time on a CPU, else wall time."""
    if device == "cpu":
        begin = time.process_time()
        run()
        return time.process_time() - begin
    torch.cuda.synchronize()
    begin = time.perf_counter()
    run()
    torch.cuda.synchronize()
    return time.perf_counter() - begin


def best(run: Callable[[], Any], *, repeats: int, device: str) -> float:
    """Return the shortest of `repeats` runs, in seconds."""
    return min(timed(run, device=device) for _ in range(repeats))


def interleave(
    runs: dict[str, Callable[[], Any]], *, repeats: int, device: str, name: str
) -> dict[str, float]:
    """Return each run's median time in seconds; runs alternate, so that noise affects all alike."""
    times: dict[str, list[float]] = {variant: [] for variant in runs}
    for repeat in range(repeats):
        for number, (variant, run) in enumerate(runs.items()):
            progress = f"repeat {repeat + 1}/{repeats}, {number + 1}/{len(runs)}: {variant}"
            print(f"\r{name} tokens, {progress:40}", end="", file=sys.stderr, flush=True)
            times[variant].append(timed(run, device=device))
    print(file=sys.stderr)
    return {variant: statistics.median(found) for variant, found in times.items()}


def default_repeats(num_tokens: int) -> int:
    return max(3, min(7, 20_000 // num_tokens))


def draw(num_tokens: int, *, vocabulary: int) -> tuple[list[int], list[list[int]], list[int]]:
    """Return a random prompt of about `num_tokens` tokens: system prompt, chunks, question."""
    count = max(2, round((num_tokens - SYSTEM - QUESTION) / CHUNK))
    generator = torch.Generator().manual_seed(num_tokens)

    def some(length: int) -> list[int]:
        ids: list[int] = torch.randint(vocabulary, (length,), generator=generator).tolist()
        return ids

    return some(SYSTEM), [some(CHUNK) for _ in range(count)], some(QUESTION)


def measure(
    adapter: ModelAdapter, num_tokens: int, directory: Path, args: argparse.Namespace
) -> dict[str, Any]:
    prompt = draw(num_tokens, vocabulary=int(adapter.config.vocab_size))
    system, chunks, question = prompt
    reuse = ChunkReuse(adapter, TieredStore(host_bytes=1 << 36), backend=args.backend)
    reuse.precompute(system, chunks)
    disk = DiskTier(directory / str(num_tokens), capacity_bytes=1 << 36)
    if args.disk:
        for name in map(reuse.library.key, (system, *chunks)):
            kv = reuse.store.get(name)
            assert kv is not None, "it is in memory"
            disk.save(name, kv)
    ids = torch.tensor([[*system, *(t for c in chunks for t in c), *question]])
    ids = ids.to(adapter.device)

    def full() -> None:
        with torch.no_grad():
            adapter.model(ids, past_key_values=DynamicCache(), use_cache=True, logits_to_keep=1)

    def from_disk(ratio: float) -> None:
        store = TieredStore(host_bytes=1 << 36, disk=disk)
        identity = reuse.library.identity
        reused(ratio, ChunkReuse(adapter, store, identity=identity, backend=args.backend))
        store.close()

    def reused(ratio: float, by: ChunkReuse = reuse) -> None:
        by.prefill(*prompt, policy=args.policy, ratio=ratio, granularity=args.granularity)

    runs: dict[str, Callable[[], Any]] = {
        "full": full,
        "assembly": lambda: reuse.assemble(*prompt),
    }
    for ratio in args.ratios:
        runs[f"{ratio:g}"] = lambda ratio=ratio: reused(ratio)
        if args.disk:
            runs[f"{ratio:g} disk"] = lambda ratio=ratio: from_disk(ratio)
    repeats, name = args.repeats or default_repeats(num_tokens), str(num_tokens)
    if args.device != "cpu":
        interleave(runs, repeats=1, device=args.device, name=f"warming up, {name}")
    seconds = interleave(runs, repeats=repeats, device=args.device, name=name)
    full_s, assembly_s = seconds.pop("full"), seconds.pop("assembly")
    return {
        "prompt_tokens": ids.shape[1],
        "repeats": repeats,
        "full_s": round(full_s, 4),
        "assembly_s": round(assembly_s, 4),
        "reuse_s": {ratio: round(value, 4) for ratio, value in seconds.items()},
        "ratio": {ratio: round(full_s / value, 2) for ratio, value in seconds.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", default="2000,4000,8000", help="prompt lengths")
    parser.add_argument("--ratios", default="0,0.05,0.15,0.3", help="recompute ratios")
    parser.add_argument(
        "--policy", choices=POLICIES, default=DEFAULT_POLICY, help="selection policy"
    )
    parser.add_argument("--granularity", type=int, default=1, help="tokens per selected block")
    parser.add_argument("--backend", default="tiled", help="attention backend")
    parser.add_argument("--shape", choices=SHAPES, default="small", help="model shape")
    parser.add_argument("--layers", type=int, help="layers; default: those of the shape")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--disk", action="store_true", help="measure KV on disk as well")
    parser.add_argument("--repeats", type=int, help="default: more for shorter prompts")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    if args.device != "cpu" and not torch.cuda.is_available():
        parser.error(f"--device {args.device}: no accelerator available")
    args.ratios = [float(ratio) for ratio in args.ratios.split(",")]
    adapter = build(args.shape, layers=args.layers, device=args.device)
    with tempfile.TemporaryDirectory() as name:
        found = {
            tokens: measure(adapter, int(tokens), Path(name), args)
            for tokens in args.tokens.split(",")
        }
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
            print(f"  recompute {ratio:>9}: {one['reuse_s'][ratio]:.3f} s, {value:.2f}x")


if __name__ == "__main__":
    main()
