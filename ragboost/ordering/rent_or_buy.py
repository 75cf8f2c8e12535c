"""Decide which leading documents of a request are computed exactly, though their KV is stored.

Reusing a stored document costs the recompute ratio of its tokens, in each request (rent). Computing
it exactly behind an exact prefix costs all of them once (price), and nothing as long as the prefix
cache holds it. That is the ski-rental problem: buying when the rent of a prefix reaches its price
costs less than twice the optimum without knowing the future. Knows documents as keys. Does not know
caches, engines or requests.
"""

import math
from collections.abc import Hashable, Sequence
from typing import NamedTuple

from ragboost.util.bounded_map import BoundedMap

_MAX_DOCUMENTS = 64  # of a request that are looked at; those behind them are reused
_MAX_REQUESTS = 32  # of a phase that are counted, so that a few hot prefixes do not speak for all
_ROUNDING = 1e-9


class Purchase(NamedTuple):
    """The leading documents of a request for which no approximate KV may stand."""

    # 0               cached_tokens       + bought_tokens                  all tokens
    # |  exact hit     |  bought: computed  |  reused, a share of it computed  |

    num_documents: int  # cached ones included
    bought_tokens: int


class _Phase:
    """A prefix from its first request without it in the cache to its eviction."""

    __slots__ = ("is_bought", "num_requests", "share", "spare_tokens", "tokens")

    def __init__(self) -> None:
        self.tokens = 0  # that its last document adds: the price
        self.num_requests = 0
        self.share = 0.0  # rent of all requests so far, without a purchase, per token
        self.is_bought = False
        self.spare_tokens = 0.0  # its part of the ledger's balance; negative if it was put off

    @property
    def optimum(self) -> float:
        """Tokens that the best decision in hindsight would have computed."""
        return min(self.share, 1.0) * self.tokens

    def is_due(self, ratio: float) -> bool:
        """Return True if the rent of one more request reaches the price."""
        return self.share + ratio >= 1.0 - _ROUNDING


class RentLedger:
    """Rents and purchases of the prefixes of one prefix cache.

    A phase of a prefix ends when the cache has lost it, or when it has not been requested for so
    long that a cache of `capacity_tokens` would have. The optimum of a phase is the smaller of the
    price and all rents. Phases of longer prefixes end with that of a shorter one, which has been
    requested as often: it is always bought first.

    A purchase comes earlier if earlier phases with as many requests went on to more than pay it
    back, and later if they did not. What that costs is taken from `balance`: twice the optimum less
    the cost, of phases that ended or were bought, and of open ones what will be left of it when
    their rent reaches the price. So the total stays within twice the optimum whatever follows, at a
    ratio that does not change.
    """

    def __init__(self, *, capacity_tokens: int | None = None, max_prefixes: int = 32_768) -> None:
        self.capacity_tokens = capacity_tokens
        self.cost_tokens = 0.0  # computed of documents so far: rents and purchases
        self.optimum_tokens = 0.0  # the least that decisions in hindsight would have computed
        self.balance = 0.0
        self._max_prefixes = max_prefixes
        self._phases: BoundedMap[int, _Phase] = BoundedMap(
            max_entries=max_prefixes + _MAX_DOCUMENTS
        )
        # Tokens of the phases that reached so many requests, by this number less one.
        self._reached = [0] * _MAX_REQUESTS

    def __repr__(self) -> str:
        return f"RentLedger({len(self._phases)} prefixes)"

    def __len__(self) -> int:
        return len(self._phases)

    def decide(
        self,
        documents: Sequence[Hashable],
        tokens: Sequence[int],
        *,
        cached_tokens: int,
        ratio: float,
    ) -> Purchase:
        """Return what a request with these documents, in prompt order, buys, and enter its
        purchases and rents; the recompute ratio, from 0 to 1, is the rent of a token."""
        num_documents = bought = reached = prefix = 0
        left = sum(tokens[:_MAX_DOCUMENTS]) - cached_tokens  # that no cache holds
        is_open, is_new = True, False
        for number, (document, length) in enumerate(zip(documents, tokens, strict=True)):
            if number == _MAX_DOCUMENTS:
                break
            prefix = hash((prefix, document))
            reached += length
            missing = min(length, reached - cached_tokens)
            if missing <= 0:
                self._hit(prefix, ratio)
                num_documents = number + 1
                continue
            phase = None if is_new else self._phases.get(prefix)
            if phase is None or phase.is_bought:
                self._end(prefix)
                phase, is_new = _Phase(), True
            phase.tokens = missing
            is_open = is_open and self._is_worth_it(phase, ratio, left=left)
            self._enter(phase, ratio, is_bought=is_open)
            left -= missing
            if is_open:
                num_documents, bought = number + 1, bought + missing
            self._phases.put(prefix, phase, size=length)
        self._trim()
        return Purchase(num_documents, bought)

    def _is_worth_it(self, phase: _Phase, ratio: float, *, left: int) -> bool:
        """Return True if a prefix is to be bought. If not, nothing of the `left` tokens is."""
        returns = self._expected_returns(phase)
        is_expected = returns is not None and returns * ratio > 1.0 - ratio
        if phase.is_due(ratio):
            return returns is None or is_expected or self.balance < ratio * left
        advance = phase.spare_tokens + (1.0 - phase.share - 2 * ratio) * phase.tokens
        return is_expected and self.balance >= advance

    def _expected_returns(self, phase: _Phase) -> float | None:
        """Return how many requests followed so many in the average phase; None: no other phase had
        so many, or they are not counted."""
        at = phase.num_requests
        if at >= _MAX_REQUESTS or self._reached[at] <= phase.tokens:
            return None
        return sum(self._reached[at + 1 :]) / (self._reached[at] + phase.tokens)

    def _enter(self, phase: _Phase, ratio: float, *, is_bought: bool) -> None:
        """Enter a request for a prefix that is not cached."""
        paid, rent = phase.share * phase.tokens, ratio * phase.tokens
        if not phase.num_requests:
            self._spare(phase, _left_when_due(ratio) * phase.tokens)
        if not is_bought and phase.is_due(ratio):  # put off, or behind one that is
            self._spare(phase, phase.spare_tokens - rent)
        self._count(phase, ratio)
        self.cost_tokens += phase.tokens if is_bought else rent
        if is_bought:
            phase.is_bought = True
            self._spare(phase, 2 * phase.optimum - paid - phase.tokens)

    def _spare(self, phase: _Phase, tokens: float) -> None:
        """Let a phase's part of the balance be so many tokens."""
        self.balance += tokens - phase.spare_tokens
        phase.spare_tokens = tokens

    def _hit(self, prefix: int, ratio: float) -> None:
        """Enter a request for a prefix that is cached."""
        phase = self._phases.get(prefix)
        if phase is None:
            return
        if phase.is_bought:
            self.balance += 2 * self._count(phase, ratio)
        else:  # somebody else has computed it
            self._end(prefix)

    def _count(self, phase: _Phase, ratio: float) -> float:
        """Count a request; return what it adds to the optimum."""
        optimum = phase.optimum
        if phase.num_requests < _MAX_REQUESTS:
            self._reached[phase.num_requests] += phase.tokens
        phase.num_requests += 1
        phase.share += ratio
        added = phase.optimum - optimum
        self.optimum_tokens += added
        return added

    def _end(self, prefix: int) -> None:
        phase = self._phases.pop(prefix)
        if phase is not None and not phase.is_bought:
            self._spare(phase, 2 * phase.optimum - phase.share * phase.tokens)

    def _trim(self) -> None:
        limit = self.capacity_tokens
        phases = self._phases
        while len(phases) > self._max_prefixes or (limit is not None and phases.size > limit):
            self._end(next(iter(phases)))


def _left_when_due(ratio: float) -> float:
    """Return twice the optimum less the cost of a prefix that is bought as soon as its rent reaches
    the price, as a share of that."""
    return 1.0 - (math.ceil(1.0 / ratio - _ROUNDING) - 1) * ratio if ratio > 0.0 else 0.0
