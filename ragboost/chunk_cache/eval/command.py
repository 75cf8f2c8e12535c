"""`ragboost eval-reuse`: evaluate selection policies with a model on a file of cases."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ragboost.chunk_cache.core.loading import find_tokenizer, load
from ragboost.chunk_cache.core.reuse import ChunkReuse
from ragboost.chunk_cache.eval.arms import (
    FULL,
    REUSE,
    Arm,
    ArmOutcome,
    MeasuredArm,
    check_ratios,
    measure_case,
    summarise,
    table,
)
from ragboost.chunk_cache.eval.cases import Case, read_cases
from ragboost.chunk_cache.eval.full_answer import estimate
from ragboost.chunk_cache.selection import MEASURED, make_policy
from ragboost.chunk_cache.store.tiered import TieredStore
from ragboost.util.text_scores import word_f1

NEIGHBOURS = 4
"""Number of chunks of the previous case that a chunk is computed after for these measurements."""


def run(
    model: Path,
    data: Path,
    *,
    policies: Sequence[str],
    ratios: Sequence[float],
    granularity: int,
    max_new_tokens: int,
    limit: int | None,
    device: str,
    as_json: bool,
) -> str:
    for policy in policies:
        make_policy(policy)
    check_ratios(ratios)
    cases = read_cases(data, tokenizer=find_tokenizer(model), limit=limit)
    adapter, tokenizer, checked = load(model, device=device)
    for case in cases:
        case.check_fits(adapter, max_answer_tokens=max_new_tokens)
    reuse = ChunkReuse(adapter, TieredStore(host_bytes=4 << 30))
    if MEASURED & set(policies):
        _measure(reuse, cases)
    arms = [FULL, REUSE]
    arms += [(p, r) for p in policies if p not in ("full", "reuse") for r in ratios]
    found: dict[str, dict[Arm, list[tuple[ArmOutcome, float]]]] = {}
    for case in cases:
        by_arm = found.setdefault(case.task, {})
        for arm in measure_case(
            reuse, case, arms, max_tokens=max_new_tokens, granularity=granularity
        ):
            outcome, score = arm.outcome, answer_score(case, arm, tokenizer)
            by_arm.setdefault((outcome.policy, outcome.ratio), []).append((outcome, score))
    rows: list[dict[str, Any]] = []
    tables = []
    for task, by_arm in found.items():
        outcomes = {arm: [outcome for outcome, _ in each] for arm, each in by_arm.items()}
        summaries = [summarise(each, outcomes[FULL]) for each in outcomes.values()]
        scores = {arm: estimate([score for _, score in each]) for arm, each in by_arm.items()}
        for row, (mean, error) in zip(summaries, scores.values(), strict=True):
            score_error = None if math.isnan(error) else error
            rows.append({"task": task, **asdict(row), "score": mean, "score_error": score_error})
        tables.append(f"{task}, {summaries[0].num_prompts} prompts\n{table(summaries, scores)}")
    if as_json:
        return json.dumps({"rows": rows, "self_test_error": checked.full_error})
    return "\n\n".join(tables)


def answer_score(case: Case, arm: MeasuredArm, tokenizer: Any | None) -> float:
    """Return whether the next token is right, or the F1 of the first line of the answer."""
    if case.answer is not None or tokenizer is None:
        return float(int(arm.agreement.logits[0].argmax()) == case.answer)
    tokens = arm.full.complete(arm.cache, arm.agreement)
    text, whole = (
        tokenizer.decode(each, skip_special_tokens=True).strip().split("\n")[0]
        for each in (tokens, arm.full.tokens)
    )
    return word_f1(text, case.answers or (whole,))


def _measure(reuse: ChunkReuse, cases: Sequence[Case]) -> None:
    for before, case in zip([cases[-1], *cases], cases, strict=False):
        for chunk in case.chunks:
            others = [other for other in before.chunks if other != chunk][:NEIGHBOURS]
            reuse.measure(case.system, chunk, neighbours=others)
