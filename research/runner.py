"""Answer cases with several policies and ratios, and compare with full attention and full reuse."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ragboost.chunk_cache.core.reuse import ChunkReuse, Prefill
from ragboost.chunk_cache.eval.arms import stop_ids
from ragboost.chunk_cache.eval.cases import Case
from ragboost.chunk_cache.eval.metrics import estimate, kl_divergence
from ragboost.chunk_cache.selection import make_policy
from ragboost.chunk_cache.selection.policy import SelectionPolicy
from ragboost.text_scores import word_f1
from research.oracle import Oracle
from research.tasks import TaskCase


@dataclass(frozen=True, slots=True)
class EvalRow:
    task: str
    policy: str
    ratio: float
    num_cases: int
    score: float  # mean accuracy or F1
    error: float  # standard error of the score over cases
    normalised: float  # recovered share of full reuse's loss; NaN if it loses nothing
    kl: float  # mean KL divergence of the first token from full attention, in nats
    recomputed: float  # share of the prompt's tokens that were computed, including the question
    ttft_s: float  # mean seconds to the first logits, including the selection


@dataclass(slots=True)
class EvalOutcome:
    score: float
    kl: float
    recomputed: float
    ttft_s: float


def evaluate(
    reuse: ChunkReuse,
    cases: Sequence[Case],
    *,
    policies: Sequence[str],
    ratios: Sequence[float],
    granularity: int = 1,
    tokenizer: Any | None = None,
    max_new_tokens: int = 32,
    store: Callable[[Case], object] | None = None,
) -> list[EvalRow]:
    """Measure every policy at every ratio, and full reuse (0) and full attention (1) once, with
    chunks stored before, by `store` or each computed alone."""
    plans = [("full", 1.0), ("reuse", 0.0)]
    plans += [(p, r) for p in policies if p not in ("full", "reuse") for r in ratios]
    outcomes: dict[tuple[str, str, float], list[EvalOutcome]] = {}
    score = AnswerScorer(reuse, tokenizer, max_new_tokens)
    for case in cases:
        if store is not None:
            store(case)
        else:
            reuse.precompute(case.system, case.chunks)
        full: Prefill | None = None
        for name, ratio in plans:
            policy = _policy(name, case)
            result = reuse.prefill(
                case.system,
                case.chunks,
                case.question,
                policy=policy,
                ratio=ratio,
                granularity=granularity,
            )
            full = full or result
            outcome = score(case, result, full)
            outcomes.setdefault((case.task, name, ratio), []).append(outcome)
    return _rows(outcomes)


class AnswerScorer:
    """The score of a prefill by its next token, or by the text decoded from it."""

    def __init__(self, reuse: ChunkReuse, tokenizer: Any | None, max_new_tokens: int) -> None:
        self._reuse, self._tokenizer, self._max = reuse, tokenizer, max_new_tokens
        self._full_text = ""

    def __call__(self, case: Case, result: Prefill, full: Prefill) -> EvalOutcome:
        return EvalOutcome(
            score=self._score(case, result, is_full=result is full),
            kl=kl_divergence(result.logits, full.logits),
            recomputed=(result.counts.recomputed + result.counts.computed) / result.num_tokens,
            ttft_s=result.seconds,
        )

    def _score(self, case: Case, result: Prefill, *, is_full: bool) -> float:
        if case.answer is not None or self._tokenizer is None:
            return float(int(result.logits.argmax()) == case.answer)
        text = self._tokenizer.decode(
            greedy(self._reuse, result, max_new_tokens=self._max), skip_special_tokens=True
        )
        text = text.strip().split("\n")[0]
        if is_full:
            self._full_text = text
        return word_f1(text, case.answers or (self._full_text,))


def greedy(reuse: ChunkReuse, result: Prefill, *, max_new_tokens: int) -> list[int]:
    return reuse.adapter.decode(
        result.cache,
        result.logits,
        position=result.num_tokens,
        max_tokens=max_new_tokens,
        stop_ids=stop_ids(reuse),
    )


def normalised(score: float, *, full: float, reuse: float) -> float:
    """Return the recovered share of full reuse's loss (FusionRAG eq. 11); NaN if there is none."""
    return (score - reuse) / (full - reuse) if full > reuse else math.nan


def _policy(name: str, case: Case) -> SelectionPolicy:
    if name == "oracle":
        return Oracle(case.dependent if isinstance(case, TaskCase) else ())
    return make_policy(name)


def _rows(outcomes: dict[tuple[str, str, float], list[EvalOutcome]]) -> list[EvalRow]:
    mean = {key: estimate([o.score for o in found]).mean for key, found in outcomes.items()}
    rows = []
    for (task, policy, ratio), found in outcomes.items():
        score = estimate([outcome.score for outcome in found])
        full, reuse = mean[task, "full", 1.0], mean[task, "reuse", 0.0]
        rows.append(
            EvalRow(
                task=task,
                policy=policy,
                ratio=ratio,
                num_cases=len(found),
                score=score.mean,
                error=0.0 if math.isnan(score.error) else score.error,
                normalised=normalised(score.mean, full=full, reuse=reuse),
                kl=estimate([outcome.kl for outcome in found]).mean,
                recomputed=estimate([outcome.recomputed for outcome in found]).mean,
                ttft_s=estimate([outcome.ttft_s for outcome in found]).mean,
            )
        )
    return rows
