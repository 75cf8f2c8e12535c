"""Learn from what engines report of the prompts of one Booster."""

from threading import RLock
from typing import NamedTuple

from ragboost.booster.residency import Residency
from ragboost.context import Context
from ragboost.errors import RequestError
from ragboost.tokens import TokenCounter


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


class UsageReports:
    """The part of a Booster that takes reports."""

    tokens: TokenCounter
    residency: Residency
    usage: UsageTotals
    _lock: RLock

    def report_usage(
        self,
        context: Context,
        *,
        prompt_tokens: int,
        cached_tokens: int,
        cached_document_tokens: int | None = None,
        reused_tokens: int | None = None,
    ) -> None:
        """Report the engine's usage of a context, to correct the index and the estimates.

        Adds it to `usage`. If a prefix was expected to be cached and was not, it has been evicted,
        and so has everything not used since; see `Residency.completed`.

        Args:
            cached_document_tokens: cached tokens of its documents, for callers who know where these
                are and correct estimates themselves; None: a share in proportion to the prompt.
            reused_tokens: whose KV came from stored chunks. Without any, the engine has computed
                all documents exactly, whatever was bought.

        Raises:
            RequestError: `cached_tokens` is negative or exceeds `prompt_tokens`.
        """
        with self._lock:
            predicted = context.predicted_cached_tokens
            self.usage = self.usage.plus(prompt_tokens, cached_tokens, predicted)
            entry = context.index_entry
            if entry is None:
                return
            if cached_document_tokens is None:
                self.tokens.correct(self.tokens.count(context.render()), prompt_tokens)
                estimated = sum(entry.tokens) + self.tokens.count(context.query)
                cached_document_tokens = round(cached_tokens / max(prompt_tokens, 1) * estimated)
            self.residency.completed(
                entry, cached_tokens=cached_document_tokens, is_measured=self.is_measured(context)
            )
            if entry.num_exact is not None and not reused_tokens:
                self.residency.computed_elsewhere(entry.documents, entry.tokens)

    def is_measured(self, context: Context) -> bool:
        """Return True if a context was ordered by counted lengths, not estimates."""
        entry = context.index_entry
        return (
            entry is not None
            and self.tokens.are_exact(document.key for document in context.documents)
            and entry.tokens == tuple(self.tokens.count_documents(context.documents))
        )
