"""Variants: the cheapest is picked, the least useful goes, the budget holds."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ragboost.chunk_cache.store.influence import Influence
from ragboost.errors import ChunkCacheError
from research.craft.variants import Variant, Variants


def variant(chunk: str, context: str, *, a: float = 1.0) -> Variant:
    """Equal attention to every chunk of the context; CCI is a / (a + 1)."""
    names = tuple(context)
    influence = Influence(names, (1.0,) * len(names), a=a, b=1.0, order=(0,))
    return Variant(chunk, f"{chunk}|{context}|{a}", influence)


def test_the_variant_that_is_cheapest_to_fix_is_picked() -> None:
    variants = Variants()
    for context, a in (("AB", 1.0), ("CD", 1.0), ("EF", 0.25)):
        assert variants.add(variant("X", context, a=a))

    # Costs after A C: .5 * (1 - .5), .5 * (1 - .5), .2 * 1. After A B: 0.
    cheap, exact = variants.choose("X", "AC"), variants.choose("X", "AB")

    assert cheap is not None
    assert cheap.variant.influence.context == ("E", "F")
    assert (cheap.overlap, cheap.overhead) == (0.0, pytest.approx(0.2))
    assert exact is not None
    assert (exact.variant.key, exact.overhead) == ("X|AB|1.0", 0.0)
    assert variants.choose("Y", "AB") is None


def test_alpha_scales_the_overhead_and_does_not_change_the_pick() -> None:
    variants = Variants()
    variants.add(variant("X", "AB"))
    variants.add(variant("X", "EF", a=3.0))
    choice = variants.choose("X", "", alpha=3.0)
    assert choice is not None
    assert choice.variant.key == "X|AB|1.0"
    assert choice.overhead == 1.0  # 3 * .5, clipped


@pytest.mark.parametrize(("context", "weight"), [("AB", 20.0), ("AC", 4.0), ("CD", 2.0)])
def test_a_use_counts_by_one_over_its_overhead(context: str, weight: float) -> None:
    """Overheads 0 (counted as .05), .25 and .5."""
    variants = Variants()
    variants.add(variant("X", "AB"))
    for _ in range(2):
        choice = variants.choose("X", context)
        assert choice is not None
        variants.use(choice)
    assert variants.of("X")[0].reuse_frequency == pytest.approx(2 * weight)


def test_a_context_is_kept_once() -> None:
    variants = Variants()
    assert variants.add(variant("X", "AB"))
    assert not variants.add(variant("X", "AB", a=2.0))
    assert variants.add(variant("X", "BA"))
    assert variants.add(variant("Y", "AB"))
    assert [v.key for v in variants.of("X")] == ["X|AB|1.0", "X|BA|1.0"]
    assert len(variants) == 3


def test_a_full_budget_loses_what_was_least_useful() -> None:
    dropped: list[str] = []
    variants = Variants(capacity=3, on_evict=dropped.append)
    for context in ("A", "B", "C"):
        variants.add(variant("X", context))
    for context in ("A", "C"):
        choice = variants.choose("X", context)
        assert choice is not None
        variants.use(choice)

    variants.add(variant("Y", "A"))
    variants.add(variant("Z", "A"))

    # B was never used; then Y, never used either, makes room for Z.
    assert dropped == ["X|B|1.0", "Y|A|1.0"]
    assert len(variants) == 3
    variants.check_integrity()


def test_the_budget_is_global_and_a_tenth_goes_at_a_time() -> None:
    variants = Variants(capacity=20)
    for number in range(20):
        variants.add(variant("X", chr(65 + number)))
    assert len(variants.of("X")) == 20  # all of it on one chunk
    variants.add(variant("Y", "A"))
    assert len(variants) == 19
    assert [v.influence.context[0] for v in variants.of("X")][:2] == ["C", "D"]


def test_forgetting_is_harmless() -> None:
    variants = Variants()
    variants.add(variant("X", "A"))
    variants.forget("X|A|1.0")
    variants.forget("X|A|1.0")
    assert (len(variants), variants.of("X")) == (0, ())
    variants.check_integrity()


def test_senseless_budgets_are_refused() -> None:
    with pytest.raises(ChunkCacheError, match="capacity must be at least 1 variant, got 0"):
        Variants(capacity=0)


@settings(max_examples=40)
@given(st.lists(st.tuples(st.sampled_from("XYZ"), st.text("ABCD", max_size=3)), max_size=40))
def test_the_books_add_up_after_any_history(history: list[tuple[str, str]]) -> None:
    dropped: list[str] = []
    variants = Variants(capacity=7, on_evict=dropped.append)
    for chunk, context in history:
        choice = variants.choose(chunk, context)
        if choice is not None:
            variants.use(choice)
        variants.add(variant(chunk, context))
        variants.check_integrity()
        assert any(v.influence.context == tuple(context) for v in variants.of(chunk))


def test_threads_may_share_it() -> None:
    variants = Variants(capacity=10)

    def work(number: int) -> None:
        for step in range(50):
            variants.add(variant("XYZ"[number % 3], chr(65 + (step * number) % 20)))
            choice = variants.choose("XYZ"[step % 3], "AB")
            if choice is not None:
                variants.use(choice)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(8)))
    variants.check_integrity()


def test_what_differs_between_versions_adds_up_and_orders_tokens() -> None:
    variants = Variants()
    variants.learn("chunk", [1.0, 2.0])  # nothing is known of it
    assert variants.by_change("chunk") == ()
    versions = [variant("chunk", context) for context in "AB"]
    assert all(variants.add(version) for version in versions)
    variants.learn("chunk", [0.5, 0.1, 0.5])
    variants.learn("chunk", [0.0, 0.3, 0.0])
    assert variants.by_change("chunk") == (0, 2, 1)
    variants.learn("chunk", [0.0, 0.2, 0.0])
    assert variants.by_change("chunk") == (1, 0, 2)
    choice = variants.choose("chunk", [], order="change")
    assert choice is not None
    assert choice.order == (1, 0, 2)
    for version in versions:
        variants.forget(version.key)
    assert variants.by_change("chunk") == ()
