"""Set alpha on a validation set: the cheapest one that answers well enough (Cache-Craft eq. 13).

Knows cases and a `CraftReuse`. Does not know files or how the curve is shown.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ragboost.chunk_cache.craft.reuse import CraftReuse
from ragboost.chunk_cache.eval.cases import Case
from ragboost.chunk_cache.eval.metrics import estimate
from ragboost.chunk_cache.eval.runner import Judge
from ragboost.chunk_cache.prefill import Prefill
from ragboost.errors import ChunkCacheError

ALPHAS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0)
DESIRED = 0.9
"""Of what full attention scores; the paper asks for nine tenths of ROUGE-L F1."""


@dataclass(frozen=True, slots=True)
class AlphaPoint:
    """One alpha.

    Attributes:
        alpha: of eq. 12.
        overhead: mean CFO of the hits.
        recompute_ratio: mean share of the hits' tokens that were computed again.
        score: mean F1 or accuracy, and its standard error over cases.
        kl: mean divergence of the first token from full attention, nats.
    """

    alpha: float
    overhead: float
    recompute_ratio: float
    score: float
    error: float
    kl: float


class Curve(NamedTuple):
    """What a validation run found.

    Attributes:
        points: ascending in alpha.
        full: what full attention scores on the cases that meet a chunk again.
        best: the point of the lowest overhead with the desired score; None: none has it.
    """

    points: tuple[AlphaPoint, ...]
    full: float
    best: AlphaPoint | None


def choose(points: Sequence[AlphaPoint], *, at_least: float) -> AlphaPoint | None:
    """Solve eq. 13: the lowest mean CFO with a score of at least so much, the lower alpha of equal
    ones; None where no point has it."""
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
    progress: Callable[[int], None] | None = None,
) -> Curve:
    """Answer every case at every alpha. Nothing is learnt: serve other requests first, whose chunks
    these cases meet again. A case that meets none says nothing about alpha and is left out. The
    `alpha` of `craft` is left at the best one, or as it was.

    Args:
        craft: with versions of chunks.
        cases: the validation set.
        alphas: to try.
        desired: share of full attention's score.
        tokenizer: turns answers into text; None: cases say the right next token.
        max_new_tokens: length of text answers.
        progress: called with the number of each case done.

    Raises:
        ChunkCacheError: no case meets a chunk again, or no alpha is given.
    """
    if not alphas:
        raise ChunkCacheError("at least one alpha must be given")
    before = craft.alpha
    judge = Judge(craft.reuse, tokenizer, max_new_tokens)
    full_scores: list[float] = []
    found: dict[float, list[tuple[float, float, float, float]]] = {a: [] for a in sorted(alphas)}
    for number, case in enumerate(cases, 1):
        parts = (case.system, case.chunks, case.question)
        if craft.plan(*parts).hits:
            full = craft.reuse.prefill(*parts, policy="full")
            full_scores.append(judge(case, full, full).score)
            for alpha, outcomes in found.items():
                craft.alpha = alpha
                outcomes.append(_answer(craft, case, full, judge))
        if progress is not None:
            progress(number)
    craft.alpha = before
    if not full_scores:
        raise ChunkCacheError(
            "no case meets a chunk of an earlier request; serve requests with the same chunks first"
        )
    points = tuple(_point(alpha, outcomes) for alpha, outcomes in found.items())
    full_score = estimate(full_scores).mean
    best = choose(points, at_least=desired * full_score)
    craft.alpha = before if best is None else best.alpha
    return Curve(points, full_score, best)


def _answer(
    craft: CraftReuse, case: Case, full: Prefill, judge: Judge
) -> tuple[float, float, float, float]:
    """Return mean CFO, recomputed share, score and divergence of one case at one alpha."""
    result = craft.prefill(case.system, case.chunks, case.question, learn=False)
    picks = [chunk.pick for chunk in result.plan.hits if chunk.pick is not None]
    outcome = judge(case, result.prefill, full)
    overhead = sum(pick.overhead for pick in picks) / max(1, len(picks))
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
