"""The parts of `benchmarks.engine_chunks` inside vLLM's environment; prints one JSON object."""

import argparse
import json
import statistics
import time
from typing import Any

import torch

from benchmarks.quality_vllm import quality
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
from benchmarks.reuse_vllm import ReuseLLM
from benchmarks.sustained import CORPUS, draw_orders, summarise_sustained
from ragboost.chunk_cache.core.reuse import ChunkReuse
from ragboost.chunk_cache.model.adapter import ModelAdapter
from ragboost.chunk_cache.store.tiered import TieredStore


def equality(args: argparse.Namespace) -> dict[str, Any]:
    """Compare with `ChunkReuse` over the same model, chunks and order."""
    engine = ReuseLLM(SMALL, max_model_len=4096)
    prompts = Prompts(system=40, chunks=5, size=120, question=23)
    engine.learn(prompts)
    reuse = ChunkReuse(ModelAdapter(engine.reference), TieredStore(), backend="tiled")
    reuse.precompute(prompts.system, prompts.chunks)
    order = [3, 1, 4, 0, 2]
    chunks = [prompts.chunks[number] for number in order]
    tokens, positions = prompts.prompt(order)
    exact = engine.exact(tokens)
    differences: dict[str, dict[str, float]] = {}
    for policy in POLICIES:
        for ratio in RATIOS:
            engine.llm.reset_prefix_cache()
            got = engine.logprobs(tokens, positions, policy=policy, ratio=ratio)
            wanted = reuse.prefill(
                prompts.system, chunks, prompts.question, policy=policy, ratio=ratio
            )
            logprobs = torch.log_softmax(wanted.logits.float(), -1)
            difference = float((got - logprobs).abs().max())
            differences.setdefault(policy, {})[str(ratio)] = difference
    engine.llm.reset_prefix_cache()
    stale = engine.logprobs(tokens, positions, policy="epic", ratio=0.0)
    return {
        "max_logprob_difference": max(max(row.values()) for row in differences.values()),
        "logprob_difference": differences,
        "exact_logprob_difference": float((engine.logprobs(tokens) - exact).abs().max()),
        "stale_logprob_difference": float((stale - exact).abs().max()),
    }


def poisoning(args: argparse.Namespace) -> dict[str, Any]:
    """Send exact requests after approximate ones, in both orders of two prompts and with generated
    tokens that complete a block."""
    engine = ReuseLLM(SMALL, max_model_len=4096)
    prompts = Prompts(system=40, chunks=5, size=120, question=23)
    engine.learn(prompts)
    engine.llm.reset_prefix_cache()
    worst = 0.0
    for order in ([3, 1, 4, 0, 2], [2, 0, 1], [4]):
        tokens, positions = prompts.prompt(order)
        for ratio in (0.0, 0.15):
            output = engine.run(tokens, positions, ratio=ratio, max_tokens=40)
            for prompt in (tokens, [*tokens, *output.outputs[0].token_ids[:-1]]):
                difference = (engine.logprobs(prompt) - engine.exact(prompt)).abs().max()
                worst = max(worst, float(difference))
    return {"poisoned": worst > 1e-3, "exact_after_approximate_difference": worst}


def ttft(args: argparse.Namespace) -> dict[str, Any]:
    """Compare with full prefill at several lengths; policies and ratios take turns."""
    lengths = [int(length) for length in args.tokens.split(",")]
    most = max(lengths)
    engine = ReuseLLM(
        {**DEEP, "num_hidden_layers": args.layers},
        DTYPES[args.dtype],
        blocks=3 * most // 32 + 8,
        max_model_len=most + 128,
        max_num_batched_tokens=most + 128,
        tensor_parallel_size=args.workers,
    )
    prompts = Prompts(system=64, chunks=most // CHUNK - 1, size=CHUNK, question=32)
    engine.learn(prompts)
    ratios: dict[str, Any] = {}
    default: dict[str, Any] = {}
    seconds: dict[str, float] = {}
    for length in lengths:
        tokens, positions = prompts.prompt(prompts.shuffled(length // CHUNK - 1))
        arms: list[tuple[str, dict[str, Any]]] = [("full", {})]
        arms.append(("epic 0.0", {"policy": "epic", "ratio": 0.0}))
        arms.extend(
            (f"{policy} {ratio}", {"policy": policy, "ratio": ratio})
            for ratio in (0.05, 0.15, 0.3)
            for policy in TIMED
        )
        arms.append(("epic 0.15 /16", {"policy": "epic", "ratio": 0.15, "granularity": 16}))
        arms.append(("gradual 0.15 /16", {"policy": "gradual", "ratio": 0.15, "granularity": 16}))
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
    """Time the steps of a decoding request while a prompt of 8,032 tokens comes in: filled in one
    step at 15 %, and over several at 30 %."""
    engine = ReuseLLM(
        {**DEEP, "num_hidden_layers": args.layers},
        DTYPES[args.dtype],
        blocks=900,
        max_model_len=9216,
        max_num_batched_tokens=2048,
    )
    prompts = Prompts(system=64, chunks=31, size=CHUNK, question=32)
    engine.learn(prompts)
    core = engine.llm.llm_engine
    told: dict[str, Any] = {}
    arms: dict[str, dict[str, Any] | None] = {"full prefill": None}
    arms |= {f"gradual {ratio}": {"ratio": ratio} for ratio in (0.15, 0.3)}
    for name, fields in arms.items():
        slowest = []
        for repeat in range(3):
            engine.llm.reset_prefix_cache()
            running = {"prompt_token_ids": prompts.tokens(32)}
            core.add_request(f"{name} {repeat}", running, engine.sampling(max_tokens=12))
            for _ in range(4):
                core.step()
            tokens, positions = prompts.prompt(prompts.shuffled(31))
            coming = engine.sampling(None if fields is None else positions, **(fields or {}))
            core.add_request(f"{name} {repeat} long", {"prompt_token_ids": tokens}, coming)
            steps = []
            while core.has_unfinished_requests():
                begin = time.process_time()
                core.step()
                steps.append(time.process_time() - begin)
            slowest.append(max(steps))
        told[name] = round(statistics.median(slowest), 3)
    full = told["full prefill"]
    ratios = {name: round(s / full, 3) for name, s in told.items()}
    return {"slowest_step_s": told, "itl_ratio": ratios}


def sustained(args: argparse.Namespace) -> dict[str, Any]:
    """Ask new questions over one corpus, half of which fits into the store."""
    num_chunks, _, size = CORPUS
    shape = {**DEEP, "num_hidden_layers": args.layers}
    chunk_bytes = args.layers * 2 * 2 * 64 * DTYPES[args.dtype].itemsize * size
    engine = ReuseLLM(
        shape,
        DTYPES[args.dtype],
        blocks=300,
        settings={"host_bytes": chunk_bytes * num_chunks // 2},
        max_model_len=4096,
        max_num_batched_tokens=4096,
    )
    prompts = Prompts(system=64, chunks=num_chunks, size=size, question=24)
    orders = draw_orders(args.questions)
    reused: list[float] = []
    full: list[float] = []
    counts: list[dict[str, int]] = []
    for number, order in enumerate(orders):
        tokens, positions = prompts.prompt(order, question=prompts.tokens(24))
        begin = time.process_time()
        output = engine.run(tokens, positions, ratio=0.15)
        reused.append(time.process_time() - begin)
        counts.append(output.kv_transfer_params["ragboost"])
        if number % 10 == 0:  # an ordinary prefill, of a prompt that nothing is cached of
            other = prompts.tokens(len(tokens))
            begin = time.process_time()
            engine.run(other)
            full.append(time.process_time() - begin)
    store = engine.llm.llm_engine.engine_core.engine_core.scheduler.connector.scheduler
    return {
        **summarise_sustained(reused, full, counts),
        "store_bytes": sum(tier.size_bytes for tier in store._library.store.memory),
        "exact_reasons": dict(store.reasons),
    }


def main() -> None:
    parts = {f.__name__: f for f in (equality, poisoning, ttft, itl, sustained, quality)}
    parser = argparse.ArgumentParser()
    parser.add_argument("part", choices=parts)
    parser.add_argument("--tokens", default="1024,4096,8192")
    parser.add_argument("--dtype", choices=DTYPES, default="bfloat16")
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--questions", type=int, default=1000)
    parser.add_argument("--seeds", default="201,202,203")
    parser.add_argument("--prompts", type=int, default=100)
    parser.add_argument("--policies", default="")
    args = parser.parse_args()
    print(json.dumps(parts[args.part](args)))


if __name__ == "__main__":
    main()
