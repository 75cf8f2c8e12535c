"""How much of a prompt is filled in one step of an engine, and whether filling it is faster than
computing it. Does not know prompts or models."""

_WEIGHT = 0.02  # of a new sample
_LEAST_SAMPLES = 16
_RETRY_EVERY = 64


class FillSpeed:
    """Both times, as a fixed part and one per token. What is filled in spite of a bad expectation,
    once in a while, keeps that up to date."""

    def __init__(self) -> None:
        self.filling = TimeLine()  # by the rows that fillings compute
        self.computing = TimeLine()  # by the tokens of the engine's own passes
        self._num_refused = 0

    def is_faster(self, *, rows: int, saved_tokens: int) -> bool:
        """Return False if to fill, computing so many rows, is expected to take longer than to
        compute the tokens in the pass that the rest of the prompt needs anyway."""
        if min(self.filling.num_samples, self.computing.num_samples) < _LEAST_SAMPLES:
            return True
        fixed_s, row_s = self.filling.fit()
        _, token_s = self.computing.fit()
        if fixed_s + row_s * rows <= token_s * saved_tokens:
            return True
        self._num_refused += 1
        return self._num_refused % _RETRY_EVERY == 0


class TimeLine:
    """Least squares of seconds over counts, of which recent samples weigh more."""

    def __init__(self) -> None:
        self.num_samples = 0
        self._sums = (0.0, 0.0, 0.0, 0.0, 0.0)

    def add(self, count: int, seconds: float) -> None:
        self.num_samples += 1
        sample = (1.0, count, seconds, count * count, count * seconds)
        old = self._sums
        self._sums = tuple([(1 - _WEIGHT) * x + y for x, y in zip(old, sample, strict=True)])  # type: ignore[assignment]

    def fit(self) -> tuple[float, float]:
        """Return the fixed seconds and those per count; neither is negative."""
        weight, x, y, xx, xy = self._sums
        spread = weight * xx - x * x
        slope = (weight * xy - x * y) / spread if spread > 1e-9 * weight * xx else 0.0
        fixed = (y - slope * x) / weight if weight else 0.0
        if slope <= 0 or fixed < 0:  # of equal counts, or too noisy
            return 0.0, xy / xx if xx else 0.0
        return fixed, slope


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
