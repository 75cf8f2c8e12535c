"""Choose alpha on a validation set: the cheapest one with the desired quality (Cache-Craft eq.
13)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ragboost.chunk_cache.core.reuse import Prefill
from ragboost.chunk_cache.eval.cases import Case
from ragboost.chunk_cache.eval.metrics import estimate
from ragboost.errors import ChunkCacheError
from research.craft.reuse import CraftReuse
from research.runner import AnswerScorer

ALPHAS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0)
DESIRED = 0.9
"""Desired share of full attention's score; the paper uses 0.9 of ROUGE-L F1."""


@dataclass(frozen=True, slots=True)
class AlphaPoint:
    """The measurements at one alpha."""

    alpha: float  # scale of eq. 12
    overhead: float  # mean CFO of the hits
    recompute_ratio: float  # mean share of the hits' tokens that were recomputed
    score: float  # mean F1 or accuracy
    error: float  # standard error of the score over cases
    kl: float  # mean KL divergence of the first token from full attention, in nats


class AlphaCurve(NamedTuple):
    """The result of a validation run."""

    points: tuple[AlphaPoint, ...]  # measurements, ascending in alpha
    full: float  # score of full attention on the cases that reuse a chunk
    # the point of the lowest overhead with the desired score; None if there is none
    best: AlphaPoint | None


def choose(points: Sequence[AlphaPoint], *, at_least: float) -> AlphaPoint | None:
    """Return the point of the lowest mean CFO with at least this score (eq. 13), of equal ones that
    of the lowest alpha; None if there is none."""
    good = [point for point in points if point.score >= at_least]
    return min(good, key=lambda point: (point.overhead, point.alpha), default=None)


def tune(
    craft: CraftReuse,
    cases: Sequence[Case],
    *,
    alphas: Sequence[float] = ALPHAS,
    desired: float = DESIRED,
    tokenizer: Any | None = None,
    max_new_tokens: int = 32,
) -> AlphaCurve:
    """Answer every case at every alpha, and set `craft.alpha` to the best one, if any.

    No new variants are stored: first serve requests with chunks that the cases reuse. Cases that
    reuse no chunk are skipped.

    Args:
        tokenizer: decodes text answers; None: cases have the id of the next token.

    Raises:
        ChunkCacheError: no case reuses a chunk, or `alphas` is empty.
    """
    if not alphas:
        raise ChunkCacheError("at least one alpha must be given")
    before = craft.alpha
    score = AnswerScorer(craft.reuse, tokenizer, max_new_tokens)
    full_scores: list[float] = []
    found: dict[float, list[tuple[float, float, float, float]]] = {a: [] for a in sorted(alphas)}
    for case in cases:
        parts = (case.system, case.chunks, case.question)
        if craft.plan(*parts).hits:
            full = craft.reuse.prefill(*parts, policy="full")
            full_scores.append(score(case, full, full).score)
            for alpha, outcomes in found.items():
                craft.alpha = alpha
                outcomes.append(_answer(craft, case, full, score))
    craft.alpha = before
    if not full_scores:
        raise ChunkCacheError(
            "no case reuses a chunk of an earlier request; serve requests with the same chunks "
            "first"
        )
    points = tuple(_point(alpha, outcomes) for alpha, outcomes in found.items())
    full_score = estimate(full_scores).mean
    best = choose(points, at_least=desired * full_score)
    craft.alpha = before if best is None else best.alpha
    return AlphaCurve(points, full_score, best)


def _answer(
    craft: CraftReuse, case: Case, full: Prefill, score: AnswerScorer
) -> tuple[float, float, float, float]:
    """Return mean CFO, recompute ratio, score and KL divergence of one case."""
    result = craft.prefill(case.system, case.chunks, case.question, learn=False)
    choices = [chunk.choice for chunk in result.plan.hits if chunk.choice is not None]
    outcome = score(case, result.prefill, full)
    overhead = sum(choice.overhead for choice in choices) / max(1, len(choices))
    return overhead, result.plan.recompute_ratio, outcome.score, outcome.kl


def _point(alpha: float, outcomes: Sequence[tuple[float, float, float, float]]) -> AlphaPoint:
    overheads, ratios, scores, kls = zip(*outcomes, strict=True)
    score = estimate(scores)
    return AlphaPoint(
        alpha=alpha,
        overhead=estimate(overheads).mean,
        recompute_ratio=estimate(ratios).mean,
        score=score.mean,
        error=score.error,
        kl=estimate(kls).mean,
    )
