"""Bound the tokens that reuse computes in one step of the engine, beside the scheduler's own.

A step ends when its slowest part does: without a bound, requests that decode would wait for all
prompts that are filled at once. A prompt that needs more than one step may compute is filled over
several, while its request waits.
"""

_LEAST_SHARE = 4
"""Paced fillings get a quarter of the budget at least, so that they end under load."""


class StepBudget:
    """Tokens that may be computed in the current step.

    The first prompt of a step is admitted whatever its size, so that none waits forever.
    """

    def __init__(self, tokens: int) -> None:
        self._tokens = tokens
        self._spent = 0
        self._holders: set[str] = set()

    def fits(self, request_id: str, tokens: int) -> bool:
        is_free = not self._holders or request_id in self._holders
        return is_free or self._spent + tokens <= self._tokens

    def admit(self, request_id: str, tokens: int) -> bool:
        """Return True if a prompt may be filled in this step, and count its tokens once."""
        if not self.fits(request_id, tokens):
            return False
        if request_id not in self._holders:
            self._holders.add(request_id)
            self._spent += tokens
        return True

    def must_pace(self, tokens: int) -> bool:
        """Return True if a prompt needs more than one step may compute."""
        return tokens > self._tokens

    def rows_left(self, num_scheduled: int) -> int:
        """Return the tokens that paced fillings may compute in a step in which the scheduler
        computes `num_scheduled`."""
        return max(1, self._tokens // _LEAST_SHARE, self._tokens - num_scheduled - self._spent)

    def next_step(self) -> None:
        self._spent = 0
        self._holders.clear()
