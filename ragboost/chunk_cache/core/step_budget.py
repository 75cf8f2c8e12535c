"""Bound the tokens that reuse computes in one step of the engine, for which all that decode wait. A
prompt that needs more is filled over several steps, while its request waits."""

_LEAST_SHARE = 4
"""Paced fillings get a quarter of the budget at least, so that they end under load."""


class StepBudget:
    """Tokens for the current step. Its first prompt is admitted whatever its size."""

    def __init__(self, tokens: int) -> None:
        self._tokens = tokens
        self._spent = 0
        self._holders: set[str] = set()

    def admit(self, request_id: str, tokens: int) -> bool:
        """Return True if a prompt may be filled in this step, and count its tokens once."""
        is_free = not self._holders or request_id in self._holders
        if not is_free and self._spent + tokens > self._tokens:
            return False
        if request_id not in self._holders:
            self._holders.add(request_id)
            self._spent += tokens
        return True

    def must_pace(self, tokens: int) -> bool:
        return tokens > self._tokens

    def rows_left(self, num_scheduled: int) -> int:
        """Return the tokens for paced fillings in a step that computes `num_scheduled` besides."""
        return max(1, self._tokens // _LEAST_SHARE, self._tokens - num_scheduled - self._spent)

    def next_step(self) -> None:
        self._spent = 0
        self._holders.clear()
