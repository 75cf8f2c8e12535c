"""Measured speeds of loading and computing KV, per token."""

import threading

_WEIGHT = 0.2
_RETRY_EVERY = 32
_SHORT_S = 0.05  # a search that nobody minds


class Speeds:
    """Moving averages (EWMA) of the seconds of loading and computing. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._load_s: float | None = None  # per token
        self._compute_s: float | None = None
        self._num_refused = 0

    def loaded(self, num_tokens: int, seconds: float) -> None:
        with self._lock:
            self._load_s = _mix(self._load_s, seconds / max(1, num_tokens))

    def missed(self, num_tokens: int, seconds: float) -> None:
        """Note a search that found none of so many tokens: a slow one counts as a load."""
        with self._lock:
            per_token = seconds / max(1, num_tokens)
            if seconds > _SHORT_S and self._compute_s is not None and per_token > self._compute_s:
                self._load_s = _mix(self._load_s, per_token)

    def computed(self, num_tokens: int, seconds: float) -> None:
        with self._lock:
            self._compute_s = _mix(self._compute_s, seconds / max(1, num_tokens))

    def compute_s(self, num_tokens: int) -> float | None:
        """Return the expected seconds to compute; None before the first prefill."""
        return None if self._compute_s is None else num_tokens * self._compute_s

    def is_worth_loading(self) -> bool:
        """Return False if loading is slower than computing; every 32nd time True, to retry."""
        with self._lock:
            if self._load_s is None or self._compute_s is None or self._load_s <= self._compute_s:
                return True
            self._num_refused += 1
            return self._num_refused % _RETRY_EVERY == 0


def _mix(old: float | None, new: float) -> float:
    return new if old is None else old + _WEIGHT * (new - old)
