"""Bound what reordering costs a request, by the queue in which nobody would overtake it.

A request's place there is the tokens that would be computed before it in order of arrival, or,
where several teams wait, in equal shares. What sharing saves beyond what it would save there is a
lead that may be spent on overtaking.
"""

from typing import NamedTuple


class Place(NamedTuple):
    """A place in the virtual queue; a smaller one is earlier."""

    begin: float  # tokens that may be sent before the request
    number: int
    tokens: int  # to compute for the request
    team: str  # whose request it is
    span: int  # what it adds to `begin` of its team's next request

    def is_behind(self, other: "Place") -> bool:
        return self.team == other.team and self.number > other.number

    def moved_up(self, span: int) -> "Place":
        return self._replace(begin=self.begin - span)


class VirtualQueue:
    def __init__(self) -> None:
        self._sent = 0.0  # tokens
        self._num_arrived = 0
        self._ends: dict[str, float] = {}  # by team that waits
        self._waiting: dict[str, int] = {}

    def __len__(self) -> int:
        return sum(self._waiting.values())

    def enter(self, team: str, tokens: int) -> Place:
        self._waiting[team] = self._waiting.get(team, 0) + 1
        begin = max(self._sent, self._ends.get(team, 0.0))
        # While others wait, a team gets an equal share of the backend.
        span = tokens * len(self._waiting)
        self._ends[team] = begin + span
        self._num_arrived += 1
        return Place(begin, self._num_arrived, tokens, team, span)

    def abandon(self, place: Place) -> None:
        """Remove a request that will not be sent; the caller moves up those behind it.

        Otherwise the tokens that nobody computes would look like tokens that sharing has saved.
        """
        self._ends[place.team] -= place.span
        self.leave(place)

    def leave(self, place: Place) -> None:
        self._waiting[place.team] -= 1
        if not self._waiting[place.team]:
            del self._waiting[place.team], self._ends[place.team]

    def sent(self, tokens: int) -> None:
        """Count the tokens of a request that is sent, whether it has waited or not."""
        self._sent += tokens

    def lead(self, places: list[Place]) -> float:
        """Return the tokens that may be sent now before all these places, in their order."""
        lead, ahead = float("inf"), 0
        for place in places:
            lead = min(lead, place.begin - self._sent - ahead)
            ahead += place.tokens
        return lead
