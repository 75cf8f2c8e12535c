"""The parts of `benchmarks.engines.chunks` in an engine's environment; prints one JSON object.

python -m benchmarks.engines.chunk_parts sglang equality
"""

import argparse
import json
import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import torch

from benchmarks.engines.sustained import CORPUS, draw_orders, summarise_sustained
from ragboost.chunk_cache.core.reuse import ChunkReuse
from ragboost.chunk_cache.model.adapter import ModelAdapter
from ragboost.chunk_cache.store.tiered import TieredStore
from tests.engines.offline import OfflineEngine
from tests.engines.random_model import (
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

Json = dict[str, Any]
ORDER = [3, 1, 4, 0, 2]


class Kind(NamedTuple):
    """How an engine is made for each part."""

    make: Callable[..., OfflineEngine]
    small: Json
    timed: Callable[[int, int], Json]  # for prompts of so many tokens, on so many workers
    sustained: Json
    arms: Mapping[str, Json] = MappingProxyType({})  # further ones of `ttft`


def vllm() -> Kind:
    from tests.engines.offline_vllm import ReuseLLM

    def timed(most: int, workers: int) -> Json:
        size = {"max_model_len": most + 128, "max_num_batched_tokens": most + 128}
        return {"blocks": 3 * most // 32 + 8, "tensor_parallel_size": workers, **size}

    blocks = {
        f"{policy} 0.15 /16": {"policy": policy, "ratio": 0.15, "granularity": 16}
        for policy in ("epic", "gradual")
    }
    sustained = {"blocks": 300, "max_model_len": 4096, "max_num_batched_tokens": 4096}
    return Kind(ReuseLLM, {"max_model_len": 4096}, timed, sustained, blocks)


def sglang() -> Kind:
    from tests.engines.offline_sglang import ReuseSGLang

    def timed(most: int, _workers: int) -> Json:
        size = {"tokens": 3 * most + 256, "chunked_prefill_size": most + 128}
        return {"page_size": 16, "sleep_on_idle": True, **size}

    sustained = {"page_size": 16, "sleep_on_idle": True}
    return Kind(ReuseSGLang, {"page_size": 16}, timed, sustained)


def equality(kind: Kind, args: argparse.Namespace) -> Json:
    """Compare with `ChunkReuse` over the same model, chunks and order."""
    prompts = Prompts(system=40, chunks=5, size=120, question=23)
    tokens, positions = prompts.prompt(ORDER)
    chunks = [prompts.chunks[number] for number in ORDER]
    differences: dict[str, dict[str, float]] = {}
    with kind.make(SMALL, **kind.small) as engine:
        engine.learn(prompts)
        reuse = ChunkReuse(ModelAdapter(engine.reference), TieredStore())
        reuse.precompute(prompts.system, prompts.chunks)
        for policy in POLICIES:
            for ratio in RATIOS:
                engine.flush()
                logprobs = engine.logprobs(tokens, positions, policy=policy, ratio=ratio)
                expected = reuse.prefill(
                    prompts.system, chunks, prompts.question, policy=policy, ratio=ratio
                )
                difference = logprobs - torch.log_softmax(expected.logits.float(), -1)
                differences.setdefault(policy, {})[str(ratio)] = float(difference.abs().max())
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


def poisoning(kind: Kind, args: argparse.Namespace) -> Json:
    """Send exact requests after approximate ones, in several orders and with generated tokens."""
    prompts = Prompts(system=40, chunks=5, size=120, question=23)
    worst = 0.0
    with kind.make(SMALL, **kind.small) as engine:
        engine.learn(prompts)
        engine.flush()
        for order in (ORDER, [2, 0, 1], [4]):
            tokens, positions = prompts.prompt(order)
            for ratio in (0.0, 0.15):
                output = engine.run(tokens, positions, ratio=ratio, max_tokens=40)
                for prompt in (tokens, [*tokens, *engine.answer(output)[:-1]]):
                    difference = (engine.logprobs(prompt) - engine.exact(prompt)).abs().max()
                    worst = max(worst, float(difference))
    return {"poisoned": worst > 1e-3, "exact_after_approximate_difference": worst}


def ttft(kind: Kind, args: argparse.Namespace) -> Json:
    """Compare with full prefill at several lengths; policies and ratios take turns."""
    lengths = [int(length) for length in args.tokens.split(",")]
    most = max(lengths)
    prompts = Prompts(system=64, chunks=most // CHUNK - 1, size=CHUNK, question=32)
    arms: dict[str, Json] = {"full": {}, "epic 0.0": {"policy": "epic", "ratio": 0.0}}
    arms |= {
        f"{policy} {ratio}": {"policy": policy, "ratio": ratio}
        for ratio in (0.05, 0.15, 0.3)
        for policy in (args.policies.split(",") if args.policies else TIMED)
    }
    arms |= kind.arms
    ratios: Json = {}
    seconds: dict[str, float] = {}
    with _deep(kind, args, **kind.timed(most, args.workers)) as engine:
        engine.learn(prompts)
        for length in lengths:
            tokens, positions = prompts.prompt(prompts.shuffled(length // CHUNK - 1))
            times: dict[str, list[float]] = {}
            for _ in range(3):
                for name, options in arms.items():
                    spans = positions if options else None
                    times.setdefault(name, []).append(engine.seconds(tokens, spans, **options))
                    if name == "full":  # what the engine's own cache gives: the bound of any reuse
                        times.setdefault("prefix hit", []).append(engine.cached_seconds(tokens))
            medians = {name: statistics.median(values) for name, values in times.items()}
            full = medians.pop("full")
            seconds[str(len(tokens))] = round(full, 3)
            ratios[str(len(tokens))] = {name: round(full / s, 2) for name, s in medians.items()}
    default = {length: default_ratios(by_arm) for length, by_arm in ratios.items()}
    return {"ttft_ratio": default, "ttft_ratio_by_policy": ratios, "full_prefill_s": seconds}


def sustained(kind: Kind, args: argparse.Namespace) -> Json:
    """Ask new questions over one corpus, half of which fits into the store; chunks enter it only
    out of these prompts."""
    num_chunks, _, size = CORPUS
    chunk_bytes = args.layers * 2 * 2 * 64 * DTYPES[args.dtype].itemsize * size
    prompts = Prompts(system=64, chunks=num_chunks, size=size, question=24)
    reused: list[float] = []
    full: list[float] = []
    counts: list[Json] = []
    settings = {"host_bytes": chunk_bytes * num_chunks // 2}
    with _deep(kind, args, settings=settings, **kind.sustained) as engine:
        for number, order in enumerate(draw_orders(args.questions)):
            tokens, positions = prompts.prompt(order, question=prompts.tokens(24))
            begin = engine.clock()
            counts.append(engine.report(engine.run(tokens, positions, ratio=0.15)))
            reused.append(engine.clock() - begin)
            if number % 10 == 0:  # an ordinary prefill, of a prompt that nothing is cached of
                other = prompts.tokens(len(tokens))
                begin = engine.clock()
                engine.run(other)
                full.append(engine.clock() - begin)
    reasons = Counter(count["reason"] for count in counts if count.get("reason"))
    return {**summarise_sustained(reused, full, counts), "exact_reasons": dict(reasons)}


def itl(kind: Kind, args: argparse.Namespace) -> Json:
    """Time what a decoding request sees while a prompt comes in; medians of three."""
    return {"vllm": _vllm_itl, "sglang": _sglang_itl}[args.engine](kind, args)


def _vllm_itl(kind: Kind, args: argparse.Namespace) -> Json:
    """Time the steps with a prompt of 8,032 tokens: filled in one step at 15 %, several at 30 %."""
    size = {"blocks": 900, "max_model_len": 9216, "max_num_batched_tokens": 2048}
    engine: Any = _deep(kind, args, **size)
    prompts = Prompts(system=64, chunks=31, size=CHUNK, question=32)
    engine.learn(prompts)
    core = engine.llm.llm_engine

    def slowest(name: str, fields: Json | None) -> float:
        engine.flush()
        running = {"prompt_token_ids": prompts.tokens(32)}
        core.add_request(name, running, engine.sampling(max_tokens=12))
        for _ in range(4):
            core.step()
        tokens, positions = prompts.prompt(prompts.shuffled(31))
        sampling = engine.sampling(None if fields is None else positions, **(fields or {}))
        core.add_request(f"{name} long", {"prompt_token_ids": tokens}, sampling)
        steps = []
        while core.has_unfinished_requests():
            begin = time.process_time()
            core.step()
            steps.append(time.process_time() - begin)
        return max(steps)

    arms: dict[str, Json | None] = {"full prefill": None}
    arms |= {f"gradual {ratio}": {"ratio": ratio} for ratio in (0.15, 0.3)}
    found = {
        name: statistics.median(slowest(f"{name} {repeat}", fields) for repeat in range(3))
        for name, fields in arms.items()
    }
    ratios = {name: round(s / found["full prefill"], 3) for name, s in found.items()}
    return {"slowest_step_s": {n: round(s, 3) for n, s in found.items()}, "itl_ratio": ratios}


def _sglang_itl(kind: Kind, args: argparse.Namespace) -> Json:
    """Time the tokens, in wall time, with a prompt of 4,096 tokens."""
    import asyncio

    prompts = Prompts(system=64, chunks=15, size=CHUNK, question=32)
    size = {"page_size": 16, "tokens": 19_200, "chunked_prefill_size": 2048}
    engine: Any
    with _deep(kind, args, **size) as engine:
        engine.learn(prompts)

        async def slowest(fields: Json | None) -> float:
            tokens, positions = prompts.prompt(prompts.shuffled(15))
            sampling = engine.sampling(None if fields is None else positions, **(fields or {}))
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
                        engine.engine.async_generate(input_ids=tokens, sampling_params=sampling)
                    )
            if other is not None:
                await other
            return max(gaps)

        found = {}
        for name, fields in {"full prefill": None, "gradual 0.15": {"ratio": 0.15}}.items():
            times = []
            for _ in range(3):
                engine.flush()
                times.append(engine.engine.loop.run_until_complete(slowest(fields)))
            found[name] = round(statistics.median(times), 3)
    return {"slowest_step_s": found, "itl_ratio": found["gradual 0.15"] / found["full prefill"]}


def _deep(kind: Kind, args: argparse.Namespace, **options: Any) -> OfflineEngine:
    shape = {**DEEP, "num_hidden_layers": args.layers}
    return kind.make(shape, DTYPES[args.dtype], **options)


def main() -> None:
    kinds = {make.__name__: make for make in (vllm, sglang)}
    parts = {f.__name__: f for f in (equality, poisoning, ttft, itl, sustained)}
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("engine", choices=kinds)
    parser.add_argument("part", choices=parts)
    parser.add_argument("--tokens", default="1024,4096,8192")
    parser.add_argument("--dtype", choices=DTYPES, default="bfloat16")
    parser.add_argument("--policies", default="")
    add = partial(parser.add_argument, type=int)
    for name, value in (("layers", 24), ("workers", 1), ("questions", 1000)):
        add(f"--{name}", default=value)
    args = parser.parse_args()
    print(json.dumps(parts[args.part](kinds[args.engine](), args)))


if __name__ == "__main__":
    main()
