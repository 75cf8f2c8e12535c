"""The parts of `benchmarks.engine_chunks` inside SGLang's environment; prints one JSON object.

Times are CPU seconds of SGLang's processes, but `itl`, which is wall time.
"""

import argparse
import asyncio
import json
import statistics
import time
from collections import Counter
from typing import Any

import torch

from benchmarks.reuse_models import (
    CHUNK,
    DEEP,
    DTYPES,
    POLICIES,
    RATIOS,
    SMALL,
    TIMED,
    Prompts,
    default_ratios,
)
from benchmarks.reuse_sglang import ReuseSGLang
from benchmarks.sustained import CORPUS, draw_orders, summarise_sustained
from ragboost.chunk_cache.core.reuse import ChunkReuse
from ragboost.chunk_cache.model.adapter import ModelAdapter
from ragboost.chunk_cache.store.tiered import TieredStore


def equality(args: argparse.Namespace) -> dict[str, Any]:
    """Compare with `ChunkReuse` over the same model, chunks and order."""
    order = [3, 1, 4, 0, 2]
    prompts = Prompts(system=40, chunks=5, size=120, question=23)
    tokens, positions = prompts.prompt(order)
    chunks = [prompts.chunks[number] for number in order]
    differences: dict[str, dict[str, float]] = {}
    with ReuseSGLang(SMALL) as engine:
        engine.learn(prompts)
        reuse = ChunkReuse(ModelAdapter(engine.reference), TieredStore(), backend="tiled")
        reuse.precompute(prompts.system, prompts.chunks)
        for policy in POLICIES:
            for ratio in RATIOS:
                engine.flush()
                got = engine.logprobs(tokens, positions, policy=policy, ratio=ratio)
                wanted = reuse.prefill(
                    prompts.system, chunks, prompts.question, policy=policy, ratio=ratio
                )
                logprobs = torch.log_softmax(wanted.logits.float(), -1)
                difference = float((got - logprobs).abs().max())
                differences.setdefault(policy, {})[str(ratio)] = difference
        engine.flush()
        exact = engine.exact(tokens)
        stale = engine.logprobs(tokens, positions, policy="epic", ratio=0.0)
        ordinary = engine.logprobs(tokens)
    return {
        "max_logprob_difference": max(max(row.values()) for row in differences.values()),
        "logprob_difference": differences,
        "exact_logprob_difference": float((ordinary - exact).abs().max()),
        "stale_logprob_difference": float((stale - exact).abs().max()),
    }


def poisoning(args: argparse.Namespace) -> dict[str, Any]:
    """Send exact requests after approximate ones, in both orders of two prompts and with generated
    tokens appended."""
    prompts = Prompts(system=40, chunks=5, size=120, question=23)
    worst = 0.0
    with ReuseSGLang(SMALL, page_size=16) as engine:
        engine.learn(prompts)
        engine.flush()
        for order in ([3, 1, 4, 0, 2], [2, 0, 1], [4]):
            tokens, positions = prompts.prompt(order)
            for ratio in (0.0, 0.15):
                output = engine.run(tokens, positions, ratio=ratio, max_tokens=40)
                for prompt in (tokens, [*tokens, *output["output_ids"][:-1]]):
                    difference = (engine.logprobs(prompt) - engine.exact(prompt)).abs().max()
                    worst = max(worst, float(difference))
    return {"poisoned": worst > 1e-3, "exact_after_approximate_difference": worst}


def ttft(args: argparse.Namespace) -> dict[str, Any]:
    """Compare with full prefill at several lengths; policies and ratios take turns."""
    lengths = [int(length) for length in args.tokens.split(",")]
    most = max(lengths)
    prompts = Prompts(system=64, chunks=most // CHUNK - 1, size=CHUNK, question=32)
    arms: list[tuple[str, dict[str, Any]]] = [("full", {})]
    arms.append(("epic 0.0", {"policy": "epic", "ratio": 0.0}))
    arms.extend(
        (f"{policy} {ratio}", {"policy": policy, "ratio": ratio})
        for ratio in (0.05, 0.15, 0.3)
        for policy in TIMED
    )
    ratios: dict[str, Any] = {}
    default: dict[str, Any] = {}
    seconds: dict[str, float] = {}
    shape = {**DEEP, "num_hidden_layers": args.layers}
    with ReuseSGLang(
        shape,
        DTYPES[args.dtype],
        page_size=16,
        tokens=3 * most + 256,
        chunked_prefill_size=most + 128,
        sleep_on_idle=True,
    ) as engine:
        engine.learn(prompts)
        for length in lengths:
            tokens, positions = prompts.prompt(prompts.shuffled(length // CHUNK - 1))
            times: dict[str, list[float]] = {}
            for _ in range(3):
                for name, options in arms:
                    spans = positions if options else None
                    times.setdefault(name, []).append(engine.seconds(tokens, spans, **options))
                    if name == "full":  # what the engine's own cache gives: the bound of any reuse
                        times.setdefault("prefix hit", []).append(engine.cached_seconds(tokens))
            medians = {name: statistics.median(values) for name, values in times.items()}
            full = medians.pop("full")
            seconds[str(len(tokens))] = round(full, 3)
            told = {name: round(full / s, 2) for name, s in medians.items()}
            ratios[str(len(tokens))] = told
            default[str(len(tokens))] = default_ratios(told)
    return {"ttft_ratio": default, "ttft_ratio_by_policy": ratios, "full_prefill_s": seconds}


def itl(args: argparse.Namespace) -> dict[str, Any]:
    """Time the tokens of a decoding request while a prompt of 4,096 tokens comes in."""
    prompts = Prompts(system=64, chunks=15, size=CHUNK, question=32)
    shape = {**DEEP, "num_hidden_layers": args.layers}
    told: dict[str, Any] = {}
    with ReuseSGLang(
        shape, DTYPES[args.dtype], page_size=16, tokens=19_200, chunked_prefill_size=2048
    ) as engine:
        engine.learn(prompts)

        async def slowest(fields: dict[str, Any] | None) -> float:
            tokens, positions = prompts.prompt(prompts.shuffled(15))
            coming = engine.sampling(None if fields is None else positions, **(fields or {}))
            running = await engine.engine.async_generate(
                input_ids=prompts.tokens(32),
                sampling_params=engine.sampling(max_tokens=12),
                stream=True,
            )
            number, last, gaps, other = 0, time.perf_counter(), [0.0], None
            async for _ in running:
                number, now = number + 1, time.perf_counter()
                if other is not None:
                    gaps.append(now - last)
                last = now
                if number == 4:
                    other = asyncio.ensure_future(
                        engine.engine.async_generate(input_ids=tokens, sampling_params=coming)
                    )
            if other is not None:
                await other
            return max(gaps)

        for name, fields in {"full prefill": None, "gradual 0.15": {"ratio": 0.15}}.items():
            found = []
            for _ in range(3):
                engine.flush()
                found.append(engine.engine.loop.run_until_complete(slowest(fields)))
            told[name] = round(statistics.median(found), 3)
    return {"slowest_step_s": told, "itl_ratio": told["gradual 0.15"] / told["full prefill"]}


def sustained(args: argparse.Namespace) -> dict[str, Any]:
    """Ask new questions over one corpus, half of which fits into the store."""
    num_chunks, _, size = CORPUS
    chunk_bytes = args.layers * 2 * 2 * 64 * DTYPES[args.dtype].itemsize * size
    prompts = Prompts(system=64, chunks=num_chunks, size=size, question=24)
    reused: list[float] = []
    full: list[float] = []
    counts: list[dict[str, Any]] = []
    with ReuseSGLang(
        {**DEEP, "num_hidden_layers": args.layers},
        DTYPES[args.dtype],
        page_size=16,
        settings={"host_bytes": chunk_bytes * num_chunks // 2},
        sleep_on_idle=True,
    ) as engine:
        for number, order in enumerate(draw_orders(args.questions)):
            tokens, positions = prompts.prompt(order, question=prompts.tokens(24))
            begin = engine.cpu_seconds()
            counts.append(engine.run(tokens, positions, ratio=0.15)["report"])
            reused.append(engine.cpu_seconds() - begin)
            if number % 10 == 0:  # an ordinary prefill, of a prompt that nothing is cached of
                other = prompts.tokens(len(tokens))
                begin = engine.cpu_seconds()
                engine.run(other)
                full.append(engine.cpu_seconds() - begin)
    reasons = Counter(count["reason"] for count in counts if "reason" in count)
    return {**summarise_sustained(reused, full, counts), "exact_reasons": dict(reasons)}


def main() -> None:
    parts = {f.__name__: f for f in (equality, poisoning, ttft, itl, sustained)}
    parser = argparse.ArgumentParser()
    parser.add_argument("part", choices=parts)
    parser.add_argument("--tokens", default="1024,4096,8192")
    parser.add_argument("--dtype", choices=DTYPES, default="bfloat16")
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--questions", type=int, default=1000)
    args, _ = parser.parse_known_args()  # there are options of other engines' parts
    print(json.dumps(parts[args.part](args)))


if __name__ == "__main__":
    main()
