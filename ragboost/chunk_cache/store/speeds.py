"""Measured speeds of loading and computing KV, per token."""

import threading
from collections import deque
from statistics import median_low

_WEIGHT = 0.2
_NUM_LOADS, _LEAST_LOADS = 5, 4
_FIRST_REFUSED, _MOST_REFUSED = 8, 32  # the embedded engine asks for each chunk of a prompt
_SHORT_S = 0.05  # a search that nobody minds


class Speeds:
    """Seconds per token: of computing a moving average (EWMA), of loading the median of the last
    loads, which one pause of a place does not change. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loads: deque[float] = deque(maxlen=_NUM_LOADS)
        self._compute_s: float | None = None
        self._num_refused, self._num_to_refuse = 0, _FIRST_REFUSED

    def loaded(self, num_tokens: int, seconds: float) -> None:
        self._note(seconds / max(1, num_tokens))

    def missed(self, num_tokens: int, seconds: float) -> None:
        """Note a search that found none of so many tokens: a slow one counts as a load."""
        per_token = seconds / max(1, num_tokens)
        if seconds > _SHORT_S and self._exceeds_compute(per_token):
            self._note(per_token)

    def computed(self, num_tokens: int, seconds: float) -> None:
        per_token = seconds / max(1, num_tokens)
        with self._lock:
            old = self._compute_s
            self._compute_s = per_token if old is None else old + _WEIGHT * (per_token - old)

    def compute_s(self, num_tokens: int) -> float | None:
        """Return the expected seconds to compute; None before the first prefill."""
        return None if self._compute_s is None else num_tokens * self._compute_s

    @property
    def is_slow(self) -> bool:
        """True if loading is slower than computing."""
        with self._lock:
            return self._is_slow()

    def is_worth_loading(self) -> bool:
        """Return False while it is slow; True to retry after 8, 16, 32, 32 ... such answers."""
        with self._lock:
            if not self._is_slow():
                self._num_refused, self._num_to_refuse = 0, _FIRST_REFUSED
                return True
            self._num_refused += 1
            if self._num_refused <= self._num_to_refuse:
                return False
            self._num_refused, self._num_to_refuse = 0, min(_MOST_REFUSED, 2 * self._num_to_refuse)
            return True

    def _note(self, load_s: float) -> None:
        with self._lock:
            if self._is_slow() and not self._exceeds_compute(load_s):
                self._loads.clear()  # it is fast again
            self._loads.append(load_s)

    def _is_slow(self) -> bool:
        is_known = len(self._loads) >= _LEAST_LOADS
        return is_known and self._exceeds_compute(median_low(self._loads))

    def _exceeds_compute(self, load_s: float) -> bool:
        return self._compute_s is not None and load_s > self._compute_s
