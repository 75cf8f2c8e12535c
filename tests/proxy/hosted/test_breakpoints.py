"""Breakpoints are chosen by what reading is expected to save, less what writing costs."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragboost.proxy.hosted.cache_marks import BreakpointPlace, choose_breakpoints, expected_gain

PLACES = st.lists(st.tuples(st.integers(1, 5000), st.floats(0, 20)), max_size=7)


def test_one_expected_read_in_four_pays_for_writing_at_anthropics_prices() -> None:
    for uses, count in ((0.27, 0), (0.29, 1)):
        gain = expected_gain(uses, 1.0, read=0.1, write=1.25)
        choice = choose_breakpoints(
            [BreakpointPlace(5000, gain)], max_places=4, cached_tokens=0, write=1.25
        )
        assert len(choice.places) == count


def test_uses_that_come_too_late_are_worth_nothing() -> None:
    assert expected_gain(9.0, 0.1, read=0.1, write=1.25) == 0
    assert expected_gain(9.0, 1.0, read=0.1, write=1.25) == pytest.approx(8.1)


def test_cached_tokens_are_not_paid_for_again() -> None:
    places = [BreakpointPlace(1000, 0.2), BreakpointPlace(1100, 0.2)]
    assert not choose_breakpoints(places, max_places=4, cached_tokens=0, write=1.25).places
    found = choose_breakpoints(places, max_places=4, cached_tokens=1000, write=1.25)
    assert found.places == (0,)


@given(PLACES, st.integers(1, 4), st.integers(0, 5000), st.sampled_from([1.0, 1.25, 2.0]))
def test_the_choice_is_the_best_of_all(
    drawn: list[tuple[int, float]], max_places: int, cached: int, write: float
) -> None:
    places, tokens = [], 0
    for length, gain in drawn:
        tokens += length
        places.append(BreakpointPlace(tokens, gain))

    def worth(chosen: tuple[int, ...]) -> float:
        value = before = 0.0
        for at in chosen:
            value += places[at].gain * (places[at].tokens - before)
            before = places[at].tokens
        return value - (write - 1) * max(0, before - cached) if chosen else 0.0

    best = max(
        worth(chosen)
        for count in range(max_places + 1)
        for chosen in itertools.combinations(range(len(places)), count)
    )
    found = choose_breakpoints(places, max_places=max_places, cached_tokens=cached, write=write)

    assert len(found.places) <= max_places
    assert found.value == pytest.approx(worth(found.places), abs=1e-6)
    assert found.value == pytest.approx(best, abs=1e-6)
