"""Time attention backends on scattered query rows against full causal attention.

    python -m benchmarks.chunks.kernels --device cuda --keys 32768 --json
    python -m benchmarks.chunks.kernels --keys 4096 --heads 14 --kv-heads 2 --head-dim 64 --json

Computes one layer's attention for a share of the rows (`--ratio`), chosen at random as single
tokens or in blocks of 16. `speedup[block][backend]` is the time of full causal attention
(FlashAttention on CUDA) divided by the backend's; `dense` is SDPA with a dense mask. Times are the
least of `--repeats`, in seconds. `accelerator` tells whether one is available.
"""

import argparse
import json
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from benchmarks.chunks.ttft import best
from benchmarks.command import make_parser
from ragboost.chunk_cache.model.attention import make_backend
from ragboost.chunk_cache.model.attention.backend import AttentionInputs


def choose_rows(num_keys: int, ratio: float, block: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    count = round(ratio * num_keys / block)
    first = torch.randperm(num_keys // block, generator=generator)[:count].sort().values * block
    return (first[:, None] + torch.arange(block)).flatten()


def measure(args: argparse.Namespace, block: int) -> dict[str, float]:
    dtype = torch.float32 if args.device == "cpu" else torch.bfloat16
    like = {"device": args.device, "dtype": dtype}
    positions = choose_rows(args.keys, args.ratio, block).to(args.device)
    whole = torch.randn(1, args.heads, args.keys, args.head_dim, **like)
    key, value = (torch.randn(1, args.kv_heads, args.keys, args.head_dim, **like) for _ in range(2))
    inputs = AttentionInputs(
        whole[:, :, positions].contiguous(),
        key,
        value,
        positions,
        scaling=float(args.head_dim) ** -0.5,
    )
    timed = {"repeats": args.repeats, "device": args.device}

    def full() -> torch.Tensor:
        return F.scaled_dot_product_attention(
            whole, key, value, is_causal=True, enable_gqa=args.heads != args.kv_heads
        )

    with torch.no_grad():
        full()
        seconds = {"full causal": best(full, **timed)}
        for name in args.backends.split(","):
            backend = make_backend(name)
            if backend.supports(inputs):
                backend.attend(inputs)
                seconds[name] = best(lambda backend=backend: backend.attend(inputs), **timed)
    return seconds


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--keys", type=int, default=32_768, help="context length, tokens")
    parser.add_argument("--heads", type=int, default=28, help="query heads")
    parser.add_argument("--kv-heads", type=int, default=4, help="KV heads")
    parser.add_argument("--head-dim", type=int, default=128, help="dimension per head")
    parser.add_argument("--ratio", type=float, default=0.15, help="share of rows computed")
    parser.add_argument(
        "--backends", default="dense,tiled,varlen", help="attention backends, comma-separated"
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeats", type=int, default=3, help="runs per backend")
    args = parser.parse_args()
    if args.device != "cpu" and not torch.cuda.is_available():
        parser.error(f"--device {args.device}: no accelerator available")
    seconds = {str(block): measure(args, block) for block in (1, 16)}
    result: dict[str, Any] = {
        "speedup": {
            block: {
                name: round(by_name["full causal"] / value, 2)
                for name, value in by_name.items()
                if name != "full causal"
            }
            for block, by_name in seconds.items()
        },
        "seconds": {
            block: {name: round(value, 5) for name, value in by_name.items()}
            for block, by_name in seconds.items()
        },
        "device": args.device,
        "accelerator": torch.cuda.is_available(),
        "keys": args.keys,
        "ratio": args.ratio,
    }
    print(json.dumps(result) if args.json else json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
