"""Keep a Booster's context index in step with an engine's prefix cache.

While the engine's events are exact, it holds what they report and what is being computed. Otherwise
it models an LRU cache, as in the paper, corrected by the usage of each response.
"""

import time
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Sequence
from threading import RLock
from typing import NamedTuple

from ragboost.booster.context import Context
from ragboost.booster.tokens import TokenCounter
from ragboost.errors import RequestError
from ragboost.index import ContextIndex, EvictionForecast, IndexEntry

_MAX_PENDING = 1024
_USES_PER_TTL = 64
# A prompt holds more than documents, and engines count whole blocks: a smaller shortfall means
# nothing. It must be larger for estimated lengths: at a tenth, false alarms cost the demo 5 points
# of hit rate.
_MIN_SHORTFALL_TOKENS = 64
_MIN_SHORTFALL_ESTIMATED = 0.5
_MIN_SHORTFALL_MEASURED = 0.1


class _Use(NamedTuple):
    """Uses of the index between two times; the last of them at `tick`."""

    since: float
    until: float
    tick: int


class Residency:
    """The resident documents of one prefix cache, as far as they are known. Thread-safe.

    Args:
        lock: the Booster's; held for one sequence at a time.
        ttl_s: seconds after its last use that the model keeps a prefix; None: no limit.
        clock: monotonic, in seconds.
    """

    def __init__(
        self,
        index: ContextIndex,
        lock: RLock,
        *,
        ttl_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.is_exact = False  # cache events are exact; the model evicts nothing
        self._ttl_s = ttl_s
        self._clock = clock
        self._uses: deque[_Use] = deque()
        self._index = index
        self._lock = lock
        self.capacity_tokens = index.capacity_tokens  # of the prefix cache; None: unknown
        self._configured_tokens = index.capacity_tokens
        # By tick of each request without a response: the oldest such tick when it was sent.
        self._pending: OrderedDict[int, int] = OrderedDict()

    def follow(
        self,
        *,
        is_exact: bool,
        capacity_tokens: int | None,
        eviction_forecast: EvictionForecast | None = None,
    ) -> None:
        """Switch between the model and cache events.

        Args:
            capacity_tokens: size of the prefix cache if the backend reports it; else None.
            eviction_forecast: what requests in flight will evict; used with events only, since the
                model evicts when a request is sent.
        """
        with self._lock:
            self.is_exact = is_exact
            self.capacity_tokens = self._configured_tokens or capacity_tokens
            self._index.capacity_tokens = None if is_exact else self.capacity_tokens
            self._index.eviction_forecast = eviction_forecast if is_exact else None
            if self._index.capacity_tokens is not None:
                self._index.evict(self._index.num_tokens - self._index.capacity_tokens)

    def clear(self) -> None:
        """Empty the index, as the engine's cache is empty."""
        with self._lock:
            self._index.clear()
            self._uses.clear()
            self._pending.clear()

    def set_resident(
        self,
        documents: Sequence[Hashable],
        tokens: Sequence[int],
        *,
        num_documents: int,
        partial_tokens: int = 0,
    ) -> None:
        """Apply what an engine reported of a sequence; see `ContextIndex.set_resident`."""
        with self._lock:
            self._index.set_resident(
                documents, tokens, num_documents=num_documents, partial_tokens=partial_tokens
            )

    def drop_unconfirmed(self, documents: Sequence[Hashable]) -> None:
        """Remove the part of a computed sequence that no event has confirmed in time."""
        with self._lock:
            if self.is_exact:
                self._index.drop_unconfirmed(documents)

    def expire(self) -> None:
        """Remove prefixes not used for `ttl_s`. Call this before reading the index."""
        if self._ttl_s is None or not self._uses:
            return
        with self._lock:
            limit, tick = self._clock() - self._ttl_s, None
            while self._uses and self._uses[0].until <= limit:
                tick = self._uses.popleft().tick
            if tick is not None and not self.is_exact:
                self._index.evict_unused(tick)

    def note_use(self) -> None:
        """Remember when the index was used; uses in quick succession count as one."""
        if self._ttl_s is None:
            return
        now = self._clock()
        since = now
        if self._uses and now - self._uses[-1].since < self._ttl_s / _USES_PER_TTL:
            since = self._uses.pop().since
        self._uses.append(_Use(since, until=now, tick=self._index.tick))

    def dispatched(self, entry: IndexEntry) -> None:
        """Note that an inserted sequence is being sent to the engine."""
        with self._lock:
            self.note_use()
            self._pending[entry.tick] = next(iter(self._pending), entry.tick)
            if len(self._pending) > _MAX_PENDING:
                self._pending.popitem(last=False)

    def computed_elsewhere(self, documents: Sequence[Hashable], tokens: Sequence[int]) -> None:
        """Model a sequence that is in the cache, though no request of this index was to put it
        there."""
        with self._lock:
            if not self.is_exact:
                self.note_use()
                self._index.insert(documents, tokens)

    def failed(self, entry: IndexEntry) -> None:
        """Take back a sequence that the engine did not compute."""
        with self._lock:
            if self._pending.pop(entry.tick, None) is None:
                return
            if self.is_exact:
                self._index.drop_unconfirmed(entry.documents)
            else:
                self._index.drop_unused(entry.documents, num_kept=entry.num_cached, tick=entry.tick)

    def completed(
        self, entry: IndexEntry, *, cached_tokens: int | None, is_measured: bool = False
    ) -> None:
        """Correct the model by the number of cached tokens that the engine reported.

        If a node was expected to be cached and was not, the engine has evicted it. Engines evict
        the least recently used first, so everything not used since that node is evicted as well.
        The sequence itself has been computed and is cached now. Changes nothing if another request
        was computing the node at that time, or while events are exact.

        Args:
            cached_tokens: reported cached tokens, in the index's tokens; None: not reported.
            is_measured: the lengths were counted, so a smaller shortfall is evidence.
        """
        share = _MIN_SHORTFALL_MEASURED if is_measured else _MIN_SHORTFALL_ESTIMATED
        with self._lock:
            oldest_pending = self._pending.pop(entry.tick, None)
            if self.is_exact or cached_tokens is None or oldest_pending is None:
                return
            for reached, last_used in entry.path:
                shortfall = reached - cached_tokens
                if shortfall > max(_MIN_SHORTFALL_TOKENS, share * reached):
                    if last_used < oldest_pending:
                        self._index.evict_unused(last_used)
                    return


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
