"""Add up what engines report of the prompts of one Booster."""

from typing import NamedTuple

from ragboost.errors import RequestError


class UsageTotals(NamedTuple):
    """Totals over all calls of `Booster.report_usage`, in tokens."""

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    predicted_cached_tokens: int = 0

    def plus(self, prompt_tokens: int, cached_tokens: int, predicted: int) -> "UsageTotals":
        """Return the totals with one more request.

        Raises:
            RequestError: `cached_tokens` is negative or exceeds `prompt_tokens`.
        """
        if not 0 <= cached_tokens <= prompt_tokens:
            raise RequestError(
                f"cached_tokens must be between 0 and prompt_tokens={prompt_tokens}, "
                f"got {cached_tokens}",
                param="cached_tokens",
            )
        return UsageTotals(
            self.requests + 1,
            self.prompt_tokens + prompt_tokens,
            self.cached_tokens + cached_tokens,
            self.predicted_cached_tokens + predicted,
        )
