"""Learn how likely the prefix of a request is to return before a cache drops it."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ragboost.proxy.hosted.prompt_blocks import PromptBlock
from ragboost.util.bounded_map import BoundedMap

_PRIOR = 0.3  # for what nothing is known of
_PRIOR_WEIGHT = 2.0  # observations that it counts as
_MAX_PENDING = 20_000  # uses of one kind that are not judged
_PATIENCE_S = 60.0  # until a use counts as the last one, while no other of its kind has returned
_PATIENCE_USES = 20  # or so many of its kind, likewise
_PATIENCE = 3.0  # the same in mean times between uses, once some have


class ReuseForecast(NamedTuple):
    """Expected later uses of a prefix, and the share of them that comes in time."""

    uses: float
    in_time: float


class _Kind:
    """Prefixes of one kind: uses of which it is known, or likely, whether another one followed."""

    __slots__ = ("gaps_s", "hits", "pending", "prefixes", "returned", "uses")

    def __init__(self, num_ttls: int) -> None:
        self.uses = self.returned = 0
        self.prefixes = 0  # that have returned or are likely not to
        self.hits = [0] * num_ttls
        self.gaps_s = 0.0  # sum over those that returned
        self.pending: deque[tuple[float, _Prefix]] = deque(maxlen=_MAX_PENDING)

    def judge(self, now: float, longest: float) -> None:
        """Count the uses that none has followed for long."""
        patience = _PATIENCE_S
        if self.returned:
            patience = min(longest, max(_PATIENCE_S / 6, _PATIENCE * self.gaps_s / self.returned))
        while self.pending and (
            now - self.pending[0][0] > patience
            or (not self.returned and len(self.pending) > _PATIENCE_USES)
        ):
            time_of_use, prefix = self.pending.popleft()
            if prefix.last == time_of_use and not prefix.is_judged:
                prefix.is_judged = True
                self.uses += 1
                self.prefixes += not prefix.uses

    @property
    def mean_uses(self) -> float:
        prior = _PRIOR / (1 - _PRIOR)
        return (self.returned + _PRIOR_WEIGHT * prior) / (self.prefixes + _PRIOR_WEIGHT)


class _Prefix:
    """The uses of one prefix that another one followed, and its state in the cache."""

    __slots__ = ("hits", "is_judged", "kind", "last", "resident_ttl", "resident_until", "uses")

    def __init__(self, num_ttls: int, kind: str) -> None:
        self.kind = kind
        self.uses = 0
        self.hits = [0] * num_ttls
        self.last = 0.0
        self.is_judged = False  # the last use is counted as one that none followed
        self.resident_until = 0.0
        self.resident_ttl = 0


class ReuseTable:
    """A bounded memory of prefixes, by last use; `ttls` are the cache's, in seconds, ascending."""

    def __init__(
        self,
        ttls: Sequence[float],
        *,
        max_prefixes: int = 100_000,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ttls = tuple(ttls)
        self._clock = clock
        self._prefixes: BoundedMap[bytes, _Prefix] = BoundedMap(max_entries=max_prefixes)
        self._kinds: dict[str, _Kind] = {}  # as many as `PromptBlock` has

    def observe(self, blocks: Sequence[PromptBlock]) -> None:
        """Count the use of every prefix of a request."""
        now = self._clock()
        for block in blocks:
            prefix = self._prefixes.get(block.key)
            if prefix is None:
                prefix = _Prefix(len(self._ttls), block.kind)
                self._prefixes.put(block.key, prefix)
            else:
                self._count_return(prefix, now - prefix.last)
            prefix.last = now
            prefix.is_judged = False
            self._kind(prefix.kind).pending.append((now, prefix))

    def _count_return(self, prefix: _Prefix, gap_s: float) -> None:
        kind = self._kind(prefix.kind)
        kind.prefixes += not prefix.uses and not prefix.is_judged
        prefix.uses += 1
        kind.uses += not prefix.is_judged
        kind.returned += 1
        kind.gaps_s += min(gap_s, self._ttls[-1])
        for at, ttl in enumerate(self._ttls):
            if gap_s <= ttl:
                prefix.hits[at] += 1
                kind.hits[at] += 1

    def forecast(self, block: PromptBlock, ttl: int) -> ReuseForecast:
        """Forecast the later uses of an observed prefix.

        Args:
            block: at the end of the prefix.
            ttl: position of the TTL within which a use is in time.
        """
        longest = len(self._ttls) - 1
        probability = self._probability(block, longest)
        prefix, kind = self._prefixes.peek(block.key), self._kind(block.kind)
        if prefix is not None:
            kind = self._kind(prefix.kind)
        past = prefix.uses if prefix is not None else 0
        uses = min(probability / (1 - probability), max(kind.mean_uses, past))
        return ReuseForecast(uses, self._probability(block, ttl) / probability)

    def _probability(self, block: PromptBlock, ttl: int) -> float:
        """Estimate how likely a prefix is used again within a TTL of its last use; 0 < p < 1."""
        prefix = self._prefixes.peek(block.key)
        kind = self._kind(block.kind if prefix is None else prefix.kind)
        kind.judge(self._clock(), self._ttls[-1])
        weight = _PRIOR_WEIGHT
        alike = (kind.hits[ttl] + weight * _PRIOR) / (kind.uses + weight)
        if prefix is None:
            return alike
        return (prefix.hits[ttl] + weight * alike) / (prefix.uses + weight)

    def resident_ttl(self, block: PromptBlock) -> int | None:
        """Return the position of the TTL with which a prefix is in the cache; None if it is not."""
        prefix = self._prefixes.peek(block.key)
        if prefix is None or prefix.resident_until <= self._clock():
            return None
        return prefix.resident_ttl

    def keep(self, block: PromptBlock, ttl: int) -> None:
        """Note that a prefix was written to the cache, or read, which renews it."""
        prefix = self._prefixes.peek(block.key)
        if prefix is not None:
            prefix.resident_ttl = ttl
            prefix.resident_until = self._clock() + self._ttls[ttl]

    def _kind(self, name: str) -> _Kind:
        if name not in self._kinds:
            self._kinds[name] = _Kind(len(self._ttls))
        return self._kinds[name]
