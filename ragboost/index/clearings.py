"""When members of a shared record were cleared, so that the record need not be visited for that."""


class Clearings:
    """A record has a bit per member, and the tick of its last change; ticks never fall.

    Not every bit counts: a member that was cleared at that tick or later has left the record.
    """

    __slots__ = ("_ticks", "last")

    def __init__(self) -> None:
        self.last = -1  # records of later ticks count as they are
        self._ticks: dict[int, int] = {}  # by bit

    def add(self, bit: int, tick: int) -> None:
        self._ticks[bit] = self.last = tick

    def live(self, members: int, tick: int) -> int:
        """Return the members of a record that are still in it."""
        if tick <= self.last:
            for bit, cleared in self._ticks.items():
                if tick <= cleared:
                    members &= ~bit
        return members
