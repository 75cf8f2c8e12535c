"""Bound the bytes of request bodies that a server holds at a time."""


class BodyBudget:
    """The bytes of bodies that are received, or whose requests are being answered.

    What does not fit is refused and does not wait: bodies that waited for each other, each with a
    part of the budget, would wait for ever.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.num_bytes = 0

    def take(self, size: int) -> bool:
        if self.num_bytes + size > self.max_bytes:
            return False
        self.num_bytes += size
        return True

    def give_back(self, size: int) -> None:
        self.num_bytes -= size
