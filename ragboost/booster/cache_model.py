"""What an engine tells of its prefix cache, applied to a Booster's context index.

While an engine's events are exact, the index holds what they say and what is being computed; else
it is the paper's model (LRU on tokens), corrected by the usage of each answer. Knows documents as
hashable keys; does not know events, blocks or HTTP.
"""

import time
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Sequence
from threading import RLock
from typing import NamedTuple

from ragboost.context import IndexEntry
from ragboost.index import ContextIndex
from ragboost.index.pressure import EvictionForecast
from ragboost.index.residency import drop_unconfirmed, drop_unused, set_resident

_MAX_UNANSWERED = 1024
_USES_PER_TTL = 64
# The prompt holds more than documents, and engines count whole blocks: a smaller shortfall says
# nothing. Where lengths are estimates it must be larger still: at a tenth the demo lost 5 points of
# hit rate to false alarms.
_MIN_SHORTFALL_TOKENS = 64
_MIN_SHORTFALL_ESTIMATED = 0.5
_MIN_SHORTFALL_MEASURED = 0.1


class _Use(NamedTuple):
    """The index was used in this time, at the latest at this tick."""

    since: float
    until: float
    tick: int


class Residency:
    """The residency side of one context index. Safe to call from several threads.

    Args:
        index: the Booster's.
        lock: the Booster's; held for one sequence at a time.
        ttl_s: seconds after its last use that a prefix stays cached, by the model; None: no limit.
        clock: seconds, never going back.

    Attributes:
        is_exact: events say what is resident; nothing is evicted by the model.
    """

    def __init__(
        self,
        index: ContextIndex,
        lock: RLock,
        *,
        ttl_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.is_exact = False
        self._ttl_s = ttl_s
        self._clock = clock
        self._uses: deque[_Use] = deque()
        self._index = index
        self._lock = lock
        self._capacity_tokens = index.capacity_tokens
        self._unanswered: OrderedDict[int, None] = OrderedDict()
        self._settled_before: OrderedDict[int, int] = OrderedDict()

    def follow(
        self,
        *,
        is_exact: bool,
        capacity_tokens: int | None,
        pressure: EvictionForecast | None = None,
    ) -> None:
        """Go over from the model to events or back.

        Args:
            is_exact: events are exact from now on.
            capacity_tokens: the prefix cache's size, where the backend says it; else None.
            pressure: what the backend's requests in flight will evict; counts with events only,
                since the model evicts when a request is sent.
        """
        with self._lock:
            self.is_exact = is_exact
            model = self._capacity_tokens or capacity_tokens
            self._index.capacity_tokens = None if is_exact else model
            self._index.pressure = pressure if is_exact else None
            if self._index.capacity_tokens is not None:
                self._index.evict(self._index.num_tokens - self._index.capacity_tokens)

    def clear(self) -> None:
        """The cache is empty."""
        with self._lock:
            self._index.clear()
            self._uses.clear()
            self._unanswered.clear()
            self._settled_before.clear()

    def set_resident(
        self,
        documents: Sequence[Hashable],
        tokens: Sequence[int],
        *,
        num_documents: int,
        cut_tokens: int = 0,
    ) -> None:
        """As `index.residency.set_resident`; confirms what it sets."""
        with self._lock:
            set_resident(
                self._index, documents, tokens, num_documents=num_documents, cut_tokens=cut_tokens
            )

    def drop_unconfirmed(self, documents: Sequence[Hashable]) -> None:
        """A sequence was computed some time ago: what no event has confirmed is not cached."""
        with self._lock:
            if self.is_exact:
                drop_unconfirmed(self._index, documents)

    def expire(self) -> None:
        """Drop what has not been used for too long; to be called before the index is read."""
        if self._ttl_s is None or not self._uses:
            return
        with self._lock:
            limit, tick = self._clock() - self._ttl_s, None
            while self._uses and self._uses[0].until <= limit:
                tick = self._uses.popleft().tick
            if tick is not None and not self.is_exact:
                self._index.evict_unused(tick)

    def used(self) -> None:
        """Note when the index was used; uses shortly after each other count as one."""
        if self._ttl_s is None:
            return
        now = self._clock()
        since = now
        if self._uses and now - self._uses[-1].since < self._ttl_s / _USES_PER_TTL:
            since = self._uses.pop().since
        self._uses.append(_Use(since, until=now, tick=self._index.tick))

    def dispatched(self, recorded: IndexEntry) -> None:
        """A sequence was inserted, and is now on its way to the engine."""
        with self._lock:
            oldest = next(iter(self._unanswered), recorded.tick)
            self._unanswered[recorded.tick] = None
            self.used()
            self._settled_before[recorded.tick] = oldest
            if len(self._unanswered) > _MAX_UNANSWERED:
                self._unanswered.popitem(last=False)
                self._settled_before.popitem(last=False)

    def failed(self, recorded: IndexEntry) -> None:
        """The engine did not compute a sequence."""
        with self._lock:
            if not self._forget(recorded):
                return
            if self.is_exact:
                drop_unconfirmed(self._index, recorded.documents)
            else:
                drop_unused(
                    self._index,
                    recorded.documents,
                    num_kept=recorded.num_cached,
                    tick=recorded.tick,
                )

    def answered(
        self, recorded: IndexEntry, *, cached_tokens: int | None, is_measured: bool = False
    ) -> None:
        """The engine has computed a sequence, and found some of it cached.

        A node that was expected and not found has been evicted. An engine evicts what was not used
        for longest, so that everything that was not used since that node has gone, too. The
        sequence itself has been computed, and is cached now. Says nothing where the node was being
        computed by another request, nor where events are exact.

        Args:
            recorded: the sequence.
            cached_tokens: what was found, in the index's tokens; None: not reported.
            is_measured: the lengths were counted, so that a smaller shortfall is evidence.
        """
        share = _MIN_SHORTFALL_MEASURED if is_measured else _MIN_SHORTFALL_ESTIMATED
        with self._lock:
            settled_before = self._settled_before.get(recorded.tick)
            self._forget(recorded)
            if self.is_exact or cached_tokens is None or settled_before is None:
                return
            for reached, last_used in recorded.path:
                shortfall = reached - cached_tokens
                if shortfall > max(_MIN_SHORTFALL_TOKENS, share * reached):
                    if last_used < settled_before:
                        self._index.evict_unused(last_used)
                    return

    def _forget(self, recorded: IndexEntry) -> bool:
        """Whether it was waiting for its answer."""
        self._unanswered.pop(recorded.tick, None)
        return self._settled_before.pop(recorded.tick, None) is not None
