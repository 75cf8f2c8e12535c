"""Measured speeds of loading and computing KV."""

import threading

_WEIGHT = 0.2
_RETRY_EVERY = 32


class Speeds:
    """Moving averages (EWMA, weight 0.2) of the speeds of loading and computing. Safe to use from
    several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._s_per_byte: float | None = None
        self._s_per_token: float | None = None
        self._num_refused = 0

    def loaded(self, num_bytes: int, seconds: float) -> None:
        with self._lock:
            self._s_per_byte = _mix(self._s_per_byte, seconds / max(1, num_bytes))

    def computed(self, num_tokens: int, seconds: float) -> None:
        with self._lock:
            self._s_per_token = _mix(self._s_per_token, seconds / max(1, num_tokens))

    def load_s(self, num_bytes: int) -> float | None:
        """Return the expected seconds to load; None before the first load."""
        return None if self._s_per_byte is None else num_bytes * self._s_per_byte

    def compute_s(self, num_tokens: int) -> float | None:
        """Return the expected seconds to compute; None before the first prefill."""
        return None if self._s_per_token is None else num_tokens * self._s_per_token

    def is_worth_loading(self, num_bytes: int, num_tokens: int) -> bool:
        """Return False if loading is expected to be slower than computing.

        Every 32nd such call returns True, to retry a medium that was slow for a while.
        """
        load_s, compute_s = self.load_s(num_bytes), self.compute_s(num_tokens)
        if load_s is None or compute_s is None or load_s <= compute_s:
            return True
        with self._lock:
            self._num_refused += 1
            return self._num_refused % _RETRY_EVERY == 0


def _mix(old: float | None, new: float) -> float:
    return new if old is None else old + _WEIGHT * (new - old)
