"""Learn from a backend's responses how long a prompt that is sent now would queue there.

A stream's first byte comes after a + b x its tokens, measured when it was alone, plus c x tokens
ahead of it. A backend that computes any number of prompts side by side has c near 0: never busy.
"""

import math
from collections.abc import Collection
from typing import NamedTuple

from ragboost.proxy.routing.admission import Admission
from ragboost.proxy.upstream.backend import Backend

_MIN_SAMPLES = 3
_DECAY = 0.9  # weight of the past per sample
_BUSY_DELAY = 1.5  # queueing in a busy backend, as a multiple of a prompt's own time
# What engines compute in one step by default: fewer tokens would leave a step part empty.
_STEP_TOKENS = 8192
_MAX_TRACKED = 512  # prompts; with more, the backend is as busy as it was
_MIN_PROMPTS = 2  # one is computed, and one is there when that is done


class PrefillPace:
    def __init__(self) -> None:
        self._sent: dict[Admission, _Sent] = {}
        self._own = _Line()
        self._num_queued = 0
        self._delay_s = 0.0  # decayed sums over requests that had others ahead of them
        self._tokens_ahead = 0.0

    @property
    def limit_tokens(self) -> float:
        """Tokens being computed from which the backend is busy; infinite while unknown."""
        if self._own.num < _MIN_SAMPLES or self._num_queued < _MIN_SAMPLES or self._delay_s <= 0:
            return math.inf
        limit = _BUSY_DELAY * self._own.mean_y * self._tokens_ahead / self._delay_s
        return max(limit, _STEP_TOKENS)

    @property
    def token_s(self) -> float | None:
        """Seconds per prompt token; None while unknown."""
        if self._own.num < _MIN_SAMPLES or not self._own.mean_x:
            return None
        return self._own.mean_y / self._own.mean_x

    def own_s(self, tokens: int) -> float:
        """Return the seconds in which a prompt of so many tokens is computed alone."""
        return self._own.at(tokens)

    def outstanding(self) -> Collection[Admission]:
        return self._sent.keys()

    def outstanding_tokens(self, now: float) -> int:
        self._drop_computed(now)
        return sum(admission.uncached_tokens for admission in self._sent)

    def is_busy(self, now: float) -> bool:
        limit = self.limit_tokens
        if limit == math.inf or len(self._sent) < _MIN_PROMPTS:
            return False
        return self.outstanding_tokens(now) >= limit and len(self._sent) >= _MIN_PROMPTS

    def next_expiry(self, now: float) -> float:
        """Return when the next prompt without a stream counts as computed; infinite: never."""
        self._drop_computed(now)
        return min((sent.computed_at for sent in self._sent.values()), default=math.inf)

    def sent(self, admission: Admission, now: float) -> None:
        if len(self._sent) >= _MAX_TRACKED:
            return
        ahead = self.outstanding_tokens(now)
        computed_at = math.inf
        if not admission.request.is_stream:  # its first byte comes with its last
            queueing = self._delay_s / self._tokens_ahead * ahead if self._tokens_ahead else 0.0
            computed_at = now + self._own.at(admission.uncached_tokens) + queueing
        self._sent[admission] = _Sent(admission.backend, now, ahead, computed_at)

    def begun(self, admission: Admission, now: float, *, is_stream: bool) -> None:
        """Note that a response has begun; only the first bytes of streams are learned from."""
        sent = self._sent.pop(admission, None)
        if sent is None or not is_stream or sent.backend is not admission.backend:
            return
        seconds, tokens = now - sent.at, admission.uncached_tokens
        if not sent.ahead:
            self._own.add(tokens, seconds)
        elif self._own.num >= _MIN_SAMPLES:
            self._num_queued = min(self._num_queued + 1, _MIN_SAMPLES)
            delay = max(0.0, seconds - self._own.at(tokens))
            self._delay_s = _DECAY * self._delay_s + delay
            self._tokens_ahead = _DECAY * self._tokens_ahead + sent.ahead

    def _drop_computed(self, now: float) -> None:
        self._sent = {
            admission: sent
            for admission, sent in self._sent.items()
            if admission.is_prefilling
            and admission.backend is sent.backend
            and now < sent.computed_at
        }


class _Sent(NamedTuple):
    """A request whose response has not begun: when it was sent, and behind how many tokens."""

    backend: Backend
    at: float
    ahead: int
    computed_at: float


class _Line:
    """A least-squares line through recent points, with a slope and an intercept of at least 0."""

    def __init__(self) -> None:
        self.num = 0
        self._weight = self._x = self._y = self._xx = self._xy = 0.0

    @property
    def mean_x(self) -> float:
        return self._x / self._weight if self._weight else 0.0

    @property
    def mean_y(self) -> float:
        return self._y / self._weight if self._weight else 0.0

    def add(self, x: float, y: float) -> None:
        self.num += 1
        self._weight = _DECAY * self._weight + 1
        self._x = _DECAY * self._x + x
        self._y = _DECAY * self._y + y
        self._xx = _DECAY * self._xx + x * x
        self._xy = _DECAY * self._xy + x * y

    def at(self, x: float) -> float:
        if not self._weight:
            return 0.0
        spread = self._xx / self._weight - self.mean_x**2
        slope = 0.0
        if spread > 1e-9 * (self._xx / self._weight):
            slope = (self._xy / self._weight - self.mean_x * self.mean_y) / spread
        highest = self.mean_y / self.mean_x if self.mean_x else 0.0
        slope = min(max(slope, 0.0), highest)
        return self.mean_y + slope * (x - self.mean_x)
