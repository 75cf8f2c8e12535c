"""Eq. 13: the cheapest alpha whose answers are good enough."""

from dataclasses import replace

import pytest

from ragboost.chunk_cache.core.reuse import ChunkReuse
from ragboost.chunk_cache.eval.cases import Case
from ragboost.chunk_cache.store.tiered import TieredStore
from ragboost.errors import ChunkCacheError
from research.craft.alpha import AlphaPoint, choose, tune
from research.craft.reuse import CraftReuse
from tests.chunk_cache.families import build_adapter, make_prompt

SYSTEM, CHUNKS, QUESTION = make_prompt()


def point(alpha: float, overhead: float, score: float) -> AlphaPoint:
    return AlphaPoint(alpha, overhead, overhead, score, error=0.0, kl=0.0)


@pytest.mark.parametrize(
    ("points", "at_least", "best"),
    [
        # The paper's curve (Fig. 13): 0.5 -> .825, 1 -> .896, 2 -> .94, 3 -> .953.
        ([(0.5, 0.1, 0.825), (1, 0.2, 0.896), (2, 0.35, 0.94), (3, 0.5, 0.953)], 0.89, 1),
        ([(0.5, 0.1, 0.825), (1, 0.2, 0.896), (2, 0.35, 0.94), (3, 0.5, 0.953)], 0.8, 0.5),
        ([(0.5, 0.1, 0.825), (1, 0.2, 0.896), (2, 0.35, 0.94), (3, 0.5, 0.953)], 0.94, 2),
        ([(0.5, 0.1, 0.825), (1, 0.2, 0.896), (2, 0.35, 0.94), (3, 0.5, 0.953)], 0.99, None),
        # A score that falls again: the cheapest that reaches it still counts.
        ([(1, 0.2, 0.9), (2, 0.4, 0.8), (3, 0.6, 0.95)], 0.9, 1),
        # Clipping makes large alphas cost the same: the lower one.
        ([(3, 1.0, 1.0), (5, 1.0, 1.0)], 0.9, 3),
        ([], 0.5, None),
    ],
)
def test_the_cheapest_good_enough_alpha_is_chosen(
    points: list[tuple[float, float, float]], at_least: float, best: float | None
) -> None:
    chosen = choose([point(*values) for values in points], at_least=at_least)
    assert (None if chosen is None else chosen.alpha) == best


def case(order: list[int]) -> Case:
    return Case(tuple(SYSTEM), tuple(tuple(CHUNKS[i]) for i in order), tuple(QUESTION))


def test_tuning_learns_nothing_and_rises_with_alpha() -> None:
    reuse = ChunkReuse(build_adapter("llama"), TieredStore())
    craft = CraftReuse(reuse)
    for order in ([0, 1, 2, 3], [2, 0, 3, 1]):
        craft.prefill(*(case(order).system, case(order).chunks, case(order).question))
    before = len(craft.variants)

    curve = tune(craft, [case([3, 1, 0, 2]), case([1, 2])], alphas=(2.0, 0.0, 1e9), desired=0.0)

    assert [p.alpha for p in curve.points] == [0.0, 2.0, 1e9]
    assert curve.points[0].recompute_ratio == 0.0
    assert curve.points[0].overhead <= curve.points[1].overhead <= curve.points[2].overhead
    assert curve.points[2].kl < curve.points[0].kl
    assert len(craft.variants) == before
    assert curve.best is not None
    assert craft.alpha == curve.best.alpha == 0.0


def test_answers_in_text_are_compared_with_full_attentions_where_none_is_given() -> None:
    class Numbers:
        def decode(self, tokens: list[int], **_options: object) -> str:
            return " ".join(map(str, tokens))

    craft = CraftReuse(ChunkReuse(build_adapter("llama"), TieredStore()))
    craft.prefill(SYSTEM, CHUNKS, QUESTION)
    cases = [case([0, 1, 2, 3]), replace(case([2, 1]), answers=("of another vocabulary",))]

    curve = tune(craft, cases, alphas=(1e9,), max_new_tokens=2, tokenizer=Numbers())

    assert curve.full == curve.points[0].score == 0.5


def test_a_case_that_meets_no_chunk_again_raises_no_bar() -> None:
    """Full attention is right on a stranger and wrong on the other, and the other alone counts."""
    craft = CraftReuse(ChunkReuse(build_adapter("llama"), TieredStore()))
    craft.prefill(SYSTEM, CHUNKS[:2], QUESTION)
    stranger = [[token ^ 1 for token in chunk] for chunk in CHUNKS[2:]]
    full = craft.reuse.prefill(SYSTEM, stranger, QUESTION, policy="full")
    right = int(full.logits.argmax())
    known = Case(tuple(SYSTEM), tuple(map(tuple, CHUNKS[1:])), tuple(QUESTION), answer=-1)
    unknown = Case(tuple(SYSTEM), tuple(map(tuple, stranger)), tuple(QUESTION), answer=right)

    curve = tune(craft, [known, unknown], alphas=(0.5,))

    assert curve.full == 0.0
    assert curve.best is not None


def test_strangers_are_nothing_to_tune_on() -> None:
    craft = CraftReuse(ChunkReuse(build_adapter("llama"), TieredStore()), early_stop=False)
    with pytest.raises(ChunkCacheError, match="no case reuses a chunk of an earlier request"):
        tune(craft, [case([0, 1])])
    with pytest.raises(ChunkCacheError, match="at least one alpha"):
        tune(craft, [case([0, 1])], alphas=())
