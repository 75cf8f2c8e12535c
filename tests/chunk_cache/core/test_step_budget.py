"""Prompts are filled in steps of bounded work."""

from ragboost.chunk_cache.core.fill_budget import StepBudget


def test_the_first_prompt_of_a_step_is_admitted_whatever_its_size() -> None:
    assert StepBudget(10).admit("long", 1000)


def test_prompts_beyond_the_budget_wait_for_the_next_step() -> None:
    budget = StepBudget(10)

    assert [budget.admit(name, 4) for name in ("a", "b", "c")] == [True, True, False]
    budget.next_step()
    assert budget.admit("c", 4)


def test_a_prompt_that_asks_twice_in_a_step_counts_once() -> None:
    budget = StepBudget(10)

    assert [budget.admit(name, 4) for name in ("a", "a", "b")] == [True] * 3


def test_a_prompt_that_needs_more_than_a_step_is_paced() -> None:
    budget = StepBudget(1000)

    assert not budget.must_pace(1000)
    assert budget.must_pace(1001)


def test_paced_fillings_get_what_is_left_of_a_step_and_a_quarter_at_least() -> None:
    budget = StepBudget(1000)

    assert budget.rows_left(100) == 900
    assert budget.admit("short", 300)
    assert budget.rows_left(100) == 600
    assert budget.rows_left(900) == 250
    budget.next_step()
    assert budget.rows_left(0) == 1000
