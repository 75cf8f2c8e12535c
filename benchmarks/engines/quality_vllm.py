"""Compare the answers of the reference model inside vLLM with those in transformers.

    python -m benchmarks.engines.chunks --engine vllm --only quality --json

The same prompts, chunks and policies as `benchmarks.chunks.quality`; each chunk is computed alone
behind the system prompt. Runs in vLLM's environment.
"""

import sys
from argparse import Namespace
from collections.abc import Sequence
from typing import Any

from benchmarks.chunks.reference import MODEL
from ragboost.chunk_cache.core.reuse import ChunkReuse
from ragboost.chunk_cache.eval.cases import Case
from ragboost.chunk_cache.model.adapter import ModelAdapter
from ragboost.chunk_cache.store.tiered import TieredStore
from research.runner import evaluate
from research.tasks import TASKS, make_prompts
from tests.engines.offline_vllm import ReuseLLM

POLICIES = ("gradual", "a3", "fusionrag", "cacheblend", "epic", "hybrid")
RATIOS = (0.05, 0.1, 0.15, 0.3)
Row = tuple[str, float]


def quality(args: Namespace) -> dict[str, Any]:
    """Return the accuracy of both for each task, policy and ratio, and the greatest difference."""
    engine = ReuseLLM(MODEL, blocks=4096, max_model_len=256)
    reuse = ChunkReuse(ModelAdapter(engine.reference), TieredStore(host_bytes=1 << 28))
    seeds = [int(seed) for seed in args.seeds.split(",")]
    policies = args.policies.split(",") if args.policies else list(POLICIES)
    score: dict[str, Any] = {}
    worst, num_arms, num_equal = 0.0, 0, 0
    for task in TASKS:
        cases = [
            prompt.case()
            for seed in seeds
            for prompt in make_prompts(task, args.prompts, seed=seed)
        ]
        expected = {
            (row.policy, row.ratio): row.score
            for row in evaluate(reuse, cases, policies=policies, ratios=RATIOS)
        }
        got = answers(engine, cases, policies)
        for (policy, ratio), accuracy in got.items():
            by_ratio = score.setdefault(task, {}).setdefault(policy, {})
            by_ratio[f"{ratio:g}"] = [round(accuracy, 4), round(expected[policy, ratio], 4)]
            worst = max(worst, abs(accuracy - expected[policy, ratio]))
            num_arms, num_equal = num_arms + 1, num_equal + (accuracy == expected[policy, ratio])
        print(task, score[task], file=sys.stderr)
    return {
        "quality": score,  # [vLLM, transformers]
        "quality_difference": round(worst, 4),
        "quality_arms": num_arms,
        "quality_equal_arms": num_equal,
        "quality_prompts": args.prompts * len(seeds),
    }


def answers(engine: ReuseLLM, cases: Sequence[Case], policies: Sequence[str]) -> dict[Row, float]:
    """Return vLLM's accuracy for each policy and ratio."""
    chunks = {(case.system, chunk) for case in cases for chunk in case.chunks}
    for system, chunk in chunks:
        engine.run([*system, *chunk], [[len(system), len(system) + len(chunk)]])
    arms: list[Row] = [("full", 1.0), ("reuse", 0.0)]
    arms += [(policy, ratio) for policy in policies for ratio in RATIOS]
    return {arm: share_right(engine, cases, arm) for arm in arms}


def share_right(engine: ReuseLLM, cases: Sequence[Case], arm: Row) -> float:
    """Return the share of cases whose next token is right, with an empty prefix cache."""
    policy, ratio = arm
    prompts, sampling = [], []
    for case in cases:
        tokens, positions = list(case.system), []
        for chunk in case.chunks:
            positions.append([len(tokens), len(tokens) + len(chunk)])
            tokens += chunk
        prompts.append({"prompt_token_ids": [*tokens, *case.question]})
        options = {"policy": policy, "ratio": ratio}
        sampling.append(engine.sampling(*([positions] if policy != "full" else []), **options))
    engine.llm.reset_prefix_cache()
    outputs = engine.llm.generate(prompts, sampling, use_tqdm=False)
    if policy != "full":
        reports = [output.kv_transfer_params["ragboost"] for output in outputs]
        if reasons := {report["reason"] for report in reports if "reason" in report}:
            raise RuntimeError(f"{policy} {ratio}: chunks were not reused: {sorted(reasons)}")
    found = [output.outputs[0].token_ids[0] for output in outputs]
    right = sum(token == case.answer for token, case in zip(found, cases, strict=True))
    return right / len(cases)
