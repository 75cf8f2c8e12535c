"""Choose cache breakpoints by expected value: what reading will save, less what writing costs."""

from collections.abc import Sequence
from typing import NamedTuple


class BreakpointPlace(NamedTuple):
    tokens: int  # of the prompt before it
    gain: float  # that each of them is expected to save, in the price of an uncached token


class BreakpointChoice(NamedTuple):
    """The chosen places and what they are worth."""

    places: tuple[int, ...]  # indices, ascending
    value: float  # in the price of an uncached token


def expected_gain(uses: float, in_time: float, *, read: float, write: float) -> float:
    """Return what a cached token is expected to save, in the price of an uncached one.

    Of `uses` later prompts, the share `in_time` saves the difference to the price of reading; one
    that comes too late writes again.
    """
    return uses * max(0.0, in_time * (1 - read) - (1 - in_time) * (write - 1))


def choose_breakpoints(
    places: Sequence[BreakpointPlace], *, max_places: int, cached_tokens: int, write: float
) -> BreakpointChoice:
    """Choose the places with the greatest expected value; none if no choice is worth its cost.

    A later prompt reads up to the last breakpoint that it shares. All tokens up to the last one are
    written, except those that are cached: further breakpoints before it cost nothing. Places ascend
    by `tokens`; `write` is the price of a written token as a multiple of an uncached one.
    """
    gains = [place.gain for place in places]
    none: tuple[int, ...] = ()
    # The best choice that ends at each place, and its value before the cost of writing.
    ending: list[tuple[float, tuple[int, ...]]] = [
        (gains[at] * place.tokens, (at,)) for at, place in enumerate(places)
    ]
    best = BreakpointChoice(none, 0.0)
    for _ in range(max_places):
        for at, (value, chosen) in enumerate(ending):
            written = max(0, places[at].tokens - cached_tokens)
            if (worth := value - (write - 1) * written) > best.value:
                best = BreakpointChoice(chosen, worth)
        ending = [
            max(
                (
                    (value + gains[at] * (place.tokens - places[before].tokens), (*chosen, at))
                    for before, (value, chosen) in enumerate(ending[:at])
                ),
                default=(float("-inf"), none),
            )
            for at, place in enumerate(places)
        ]
    return best
