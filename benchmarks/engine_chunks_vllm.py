"""The parts of `benchmarks.engine_chunks` inside vLLM's environment; prints one JSON object."""

import argparse
import json
import statistics
import time
from typing import Any

import torch

from benchmarks.reuse_models import CHUNK, DEEP, POLICIES, RATIOS, SMALL, TIMED, Prompts
from benchmarks.reuse_vllm import ReuseLLM
from ragboost.chunk_cache.kv.store import ChunkStore
from ragboost.chunk_cache.model.adapter import ModelAdapter
from ragboost.chunk_cache.reuse import ChunkReuse


def equality(args: argparse.Namespace) -> dict[str, Any]:
    """Compare with `ChunkReuse` over the same model, chunks and order."""
    engine = ReuseLLM(SMALL, max_model_len=4096)
    prompts = Prompts(system=40, chunks=5, size=120, question=23)
    engine.learn(prompts)
    reuse = ChunkReuse(ModelAdapter(engine.reference), ChunkStore(), backend="tiled")
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
        torch.bfloat16,
        blocks=3 * most // 32 + 8,
        max_model_len=most + 128,
        max_num_batched_tokens=most + 128,
    )
    prompts = Prompts(system=64, chunks=most // CHUNK - 1, size=CHUNK, question=32)
    engine.learn(prompts)
    ratios: dict[str, Any] = {}
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
            for name, told in arms:
                spans = positions if told else None
                times.setdefault(name, []).append(engine.seconds(tokens, spans, **told))
        medians = {name: statistics.median(values) for name, values in times.items()}
        full = medians.pop("full")
        seconds[str(len(tokens))] = round(full, 3)
        ratios[str(len(tokens))] = {name: round(full / s, 2) for name, s in medians.items()}
    return {"ttft_ratio": ratios, "full_prefill_s": seconds}


def itl(args: argparse.Namespace) -> dict[str, Any]:
    """Time the steps of a decoding request while a prompt of 4,096 tokens comes in."""
    engine = ReuseLLM(
        {**DEEP, "num_hidden_layers": args.layers},
        torch.bfloat16,
        blocks=600,
        max_model_len=8192,
        max_num_batched_tokens=2048,
    )
    prompts = Prompts(system=64, chunks=15, size=CHUNK, question=32)
    engine.learn(prompts)
    core = engine.llm.llm_engine
    told: dict[str, Any] = {}
    for name, fields in {"full prefill": None, "gradual 0.15": {"ratio": 0.15}}.items():
        slowest = []
        for repeat in range(3):
            engine.llm.reset_prefix_cache()
            running = {"prompt_token_ids": prompts.tokens(32)}
            core.add_request(f"{name} {repeat}", running, engine.sampling(max_tokens=12))
            for _ in range(4):
                core.step()
            tokens, positions = prompts.prompt(prompts.shuffled(15))
            coming = engine.sampling(None if fields is None else positions, **(fields or {}))
            core.add_request(f"{name} {repeat} long", {"prompt_token_ids": tokens}, coming)
            steps = []
            while core.has_unfinished_requests():
                begin = time.process_time()
                core.step()
                steps.append(time.process_time() - begin)
            slowest.append(max(steps))
        told[name] = round(statistics.median(slowest), 3)
    return {"slowest_step_s": told, "itl_ratio": told["gradual 0.15"] / told["full prefill"]}


def sustained(args: argparse.Namespace) -> dict[str, Any]:
    """Ask new questions over one corpus, half of which fits into the store."""
    num_chunks, used, size = 120, 12, 160
    shape = {**DEEP, "num_hidden_layers": args.layers}
    chunk_bytes = args.layers * 2 * 2 * 64 * 2 * size
    engine = ReuseLLM(
        shape,
        torch.bfloat16,
        blocks=300,
        settings={"host_bytes": chunk_bytes * num_chunks // 2},
        max_model_len=4096,
    )
    prompts = Prompts(system=64, chunks=num_chunks, size=size, question=24)
    # A few chunks are asked for often, most of them rarely (Zipf).
    weights = torch.tensor([1.0 / (rank + 1) for rank in range(num_chunks)])
    generator = torch.Generator().manual_seed(0)
    reused: list[float] = []
    full: list[float] = []
    counts: list[dict[str, int]] = []
    for number in range(args.questions):
        order = torch.multinomial(weights, used, generator=generator).tolist()
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
    ordinary, window = statistics.median(full), min(50, args.questions // 4)
    filled = [n for n, count in enumerate(counts) if count["reused"]]
    warm = [reused[n] for n in filled]
    first, last = warm[:window], warm[-window:]
    speed = [ordinary / statistics.mean(part) for part in (first, last)]
    store = engine.llm.llm_engine.engine_core.engine_core.scheduler.connector.planner
    return {
        "sustained": round(speed[1] / speed[0], 3),
        "sustained_speedup": [round(value, 2) for value in speed],
        "reused_requests": [
            sum(n in set(filled) for n in range(window)),
            sum(n in set(filled) for n in range(args.questions - window, args.questions)),
        ],
        "reused_share": round(
            sum(count["reused"] for count in counts) / sum(sum_of(count) for count in counts), 3
        ),
        "store_bytes": sum(tier.size_bytes for tier in store._library.store.memory),
        "exact_reasons": dict(store.reasons),
    }


def sum_of(count: dict[str, Any]) -> int:
    """Return the tokens of a prompt from its report."""
    return sum(count[name] for name in ("exact", "reused", "recomputed", "computed"))


def main() -> None:
    parts = {f.__name__: f for f in (equality, poisoning, ttft, itl, sustained)}
    parser = argparse.ArgumentParser()
    parser.add_argument("part", choices=parts)
    parser.add_argument("--tokens", default="1024,4096")
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--questions", type=int, default=1000)
    args = parser.parse_args()
    print(json.dumps(parts[args.part](args)))


if __name__ == "__main__":
    main()
