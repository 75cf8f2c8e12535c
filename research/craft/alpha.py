"""Choose alpha on a validation set: the cheapest one with the desired quality (Cache-Craft eq.
13)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ragboost.chunk_cache.core.reuse import ChunkReuse, Prefill
from ragboost.chunk_cache.eval.arms import stop_ids
from ragboost.chunk_cache.eval.cases import Case
from ragboost.chunk_cache.eval.full_answer import estimate, kl_divergence
from ragboost.errors import ChunkCacheError
from ragboost.util.text_scores import word_f1
from research.craft.reuse import CraftReuse

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


class AnswerScorer:
    """The score of a prefill by its next token, or by the text decoded from it."""

    def __init__(self, reuse: ChunkReuse, tokenizer: Any | None, max_new_tokens: int) -> None:
        self._reuse, self._tokenizer, self._max = reuse, tokenizer, max_new_tokens
        self._full_text = ""

    def score(self, case: Case, result: Prefill, *, is_full: bool) -> float:
        """Return accuracy or F1. Without a right answer it is compared with full attention's, which
        is scored first."""
        if case.answer is not None or self._tokenizer is None:
            return float(int(result.logits.argmax()) == case.answer)
        tokens = self._reuse.adapter.decode(
            result.cache,
            result.logits,
            position=result.num_tokens,
            max_tokens=self._max,
            stop_ids=stop_ids(self._reuse),
        )
        text = self._tokenizer.decode(tokens, skip_special_tokens=True).strip().split("\n")[0]
        if is_full:
            self._full_text = text
        return word_f1(text, case.answers or (self._full_text,))


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
    scorer = AnswerScorer(craft.reuse, tokenizer, max_new_tokens)
    full_scores: list[float] = []
    found: dict[float, list[tuple[float, float, float, float]]] = {a: [] for a in sorted(alphas)}
    for case in cases:
        parts = (case.system, case.chunks, case.question)
        if craft.plan(*parts).hits:
            full = craft.reuse.prefill(*parts, policy="full")
            full_scores.append(scorer.score(case, full, is_full=True))
            for alpha, outcomes in found.items():
                craft.alpha = alpha
                outcomes.append(_answer(craft, case, full, scorer))
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
    craft: CraftReuse, case: Case, full: Prefill, scorer: AnswerScorer
) -> tuple[float, float, float, float]:
    """Return mean CFO, recompute ratio, score and KL divergence of one case."""
    result = craft.prefill(case.system, case.chunks, case.question, learn=False)
    choices = [chunk.choice for chunk in result.plan.hits if chunk.choice is not None]
    score = scorer.score(case, result.prefill, is_full=False)
    overhead = sum(choice.overhead for choice in choices) / max(1, len(choices))
    kl = kl_divergence(result.prefill.logits, full.logits)
    return overhead, result.plan.recompute_ratio, score, kl


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
