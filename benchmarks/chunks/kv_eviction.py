"""Measure the decoding time saved by evicting document KV after prefill, and the accuracy lost.

    python -m benchmarks.chunks.kv_eviction --json

`step_ms[kept]` is the processor time in milliseconds of one decoding step after a prompt of
`--tokens`, by tokens kept per layer and head ("all": no eviction), on the model of `chunks.ttft`.
`score[task][kept]` is the reference model's accuracy when the question is asked a second time on
the reduced cache.
"""

import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.chunks.reference import MODEL, load_adapter
from benchmarks.chunks.ttft import CHUNK, QUESTION, SYSTEM, build
from benchmarks.command import make_parser, report
from ragboost.chunk_cache.core.reuse import ChunkReuse, Prefill
from ragboost.chunk_cache.model.adapter import ModelAdapter
from ragboost.chunk_cache.store.tiered import TieredStore
from research.snapkv import shortened_prefill
from research.tasks import TASKS, make_prompts

STEPS = 16


@torch.no_grad()
def decode(adapter: ModelAdapter, result: Prefill, tokens: list[int]) -> torch.Tensor:
    """Feed tokens one by one after a prefill and return the last logits."""
    logits = result.logits
    for number, token in enumerate(tokens):
        out = adapter.model(
            torch.tensor([[token]], device=adapter.device),
            position_ids=torch.tensor([[result.num_tokens + number]], device=adapter.device),
            past_key_values=result.cache,
            use_cache=True,
        )
        logits = out.logits[0, -1]
    return logits


def step_ms(num_tokens: int, kept: list[int | None]) -> dict[str, float]:
    adapter = build("small", layers=None, device="cpu")
    reuse = ChunkReuse(adapter, TieredStore(host_bytes=1 << 34))
    generator = torch.Generator().manual_seed(0)

    def draw(length: int) -> list[int]:
        ids: list[int] = torch.randint(8192, (length,), generator=generator).tolist()
        return ids

    chunks = [draw(CHUNK) for _ in range(round((num_tokens - SYSTEM - QUESTION) / CHUNK))]
    system, question = draw(SYSTEM), draw(QUESTION)
    reuse.precompute(system, chunks)
    found = {}
    for keep in kept:
        result = shortened_prefill(
            reuse, system, chunks, question, policy="reuse", ratio=0.0, keep_tokens=keep
        )
        decode(adapter, result, [5])
        begin = time.process_time()
        decode(adapter, result, [7] * STEPS)
        found[str(keep or "all")] = round(1000 * (time.process_time() - begin) / STEPS, 2)
    return found


def scores(model: Path, prompts: int, kept: list[int | None]) -> dict[str, dict[str, float]]:
    adapter = load_adapter(model)
    reuse = ChunkReuse(adapter, TieredStore())
    found: dict[str, dict[str, float]] = {}
    for task in TASKS:
        drawn = make_prompts(task, prompts, seed=301)
        for keep in kept:
            right = 0
            for prompt in drawn:
                reuse.precompute(prompt.system, prompt.chunks)
                result = shortened_prefill(
                    reuse, prompt.system, prompt.chunks, prompt.question, keep_tokens=keep
                )
                again = decode(adapter, result, list(prompt.question))
                right += int(again.argmax()) == prompt.answer
            found.setdefault(task, {})[str(keep or "all")] = right / prompts
    return found


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--model", type=Path, default=MODEL, help="reference model of score")
    parser.add_argument("--tokens", type=int, default=8000, help="prompt length for step_ms")
    parser.add_argument("--prompts", type=int, default=100, help="prompts per task for score")
    args = parser.parse_args()
    result: dict[str, Any] = {
        "tokens": args.tokens,
        "step_ms": step_ms(args.tokens, [None, 2048, 1024, 512]),
        "score": scores(args.model, args.prompts, [None, 52, 28, 16]),
        "prompt_tokens_of_score": 101,
    }
    report(result, args, show)


def show(result: dict[str, Any]) -> None:
    print("milliseconds per decoding step, by tokens kept:", result["step_ms"])
    for task, by_kept in result["score"].items():
        print(f"  {task:10}", by_kept)


if __name__ == "__main__":
    main()
