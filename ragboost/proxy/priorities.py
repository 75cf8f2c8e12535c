"""Send each team's requests with the priority that the operator has set for it."""

from collections.abc import Mapping

from ragboost.errors import RequestError
from ragboost.proxy.asgi.keys import team_of
from ragboost.requests.json_body import JsonBody, MalformedBodyError


class Priorities:
    """The least `priority` of each team's requests, by its name; engines begin with the least."""

    def __init__(self, priorities: Mapping[str, int]) -> None:
        self._by_team = {team_of(name): priority for name, priority in priorities.items()}

    def apply(self, raw: bytes, team: str) -> bytes:
        """Return the body with its team's priority, or the client's own where that is greater.

        Raises:
            RequestError: the body cannot be read here, and an engine might find a priority in it.
        """
        least = self._by_team.get(team)
        if least is None:
            return raw
        try:
            body = JsonBody(raw)
        except MalformedBodyError as error:
            raise RequestError(str(error)) from None
        own = body.fields.get("priority")
        # A number in quotes, or with a fraction, is one for engines that convert it.
        if type(own) is int and own >= least:
            return raw
        return body.encode({**body.fields, "priority": least})
