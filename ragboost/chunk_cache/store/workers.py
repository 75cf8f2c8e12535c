"""A few daemon threads for work that may hang, and when to stop asking a place, which fails, or is
slower than computing. Hung work holds up neither its caller nor the end of the process."""

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from statistics import median_low

from ragboost.errors import RagBoostError

logger = logging.getLogger(__name__)

WORK_ERRORS = (RagBoostError, OSError, RuntimeError, MemoryError, ValueError, LookupError)
"""Errors of reading, checking and moving KV, torch's among them."""
_MAX_QUEUED = 1024
_MAX_FAILURES = 3
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0


class Workers:
    def __init__(self, count: int, *, name: str) -> None:
        self._queue: queue.Queue[Callable[[], None] | None] = queue.Queue(_MAX_QUEUED)
        self._name, self._threads = name, list[threading.Thread]()
        for _ in range(count):
            self._start()

    def submit(self, work: Callable[[], None]) -> bool:
        """Queue a function; return False if too many wait."""
        try:
            self._queue.put_nowait(work)
        except queue.Full:
            return False
        return True

    def close(self, *, timeout_s: float) -> None:
        """Finish what is queued, as far as there is time; 0: drop what has not begun."""
        deadline = time.monotonic() + timeout_s
        with suppress(queue.Empty):
            while not timeout_s:
                self._queue.get_nowait()
        with suppress(queue.Full):
            for _ in self._threads:
                self._queue.put(None, timeout=max(0.0, deadline - time.monotonic()))
            for thread in self._threads:
                thread.join(max(0.0, deadline - time.monotonic()))

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _run(self) -> None:
        has_ended = False
        try:
            while (work := self._queue.get()) is not None:
                try:
                    work()
                except WORK_ERRORS:
                    logger.exception("moving stored KV failed")
            has_ended = True
        finally:
            if not has_ended:  # a bug ends this thread, with its traceback, but not the work
                self._threads.remove(threading.current_thread())
                self._start()


class Breaker:
    """Stop asking a store after three failures in a row, and try again after 1, 2, 4 ... 60
    seconds. Safe to use from several threads."""

    def __init__(self, *, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._name, self._clock, self._lock = name, clock, threading.Lock()
        self._num_failures, self._pause_s, self._open_until = 0, _FIRST_PAUSE_S, 0.0

    @property
    def is_open(self) -> bool:
        return self._clock() < self._open_until

    @property
    def is_failing(self) -> bool:
        return self._num_failures >= _MAX_FAILURES

    def failed(self, *, is_hung: bool = False) -> None:
        with self._lock:
            self._num_failures += _MAX_FAILURES if is_hung else 1
            if self._num_failures < _MAX_FAILURES or self.is_open:
                return
            logger.warning("%s fails: not asked again for %g s", self._name, self._pause_s)
            self._open_until = self._clock() + self._pause_s
            self._pause_s = min(_LONGEST_PAUSE_S, 2 * self._pause_s)

    def worked(self) -> bool:
        """Note that it works; return True if it does so again."""
        with self._lock:
            was_failing = self.is_failing
            if was_failing:
                logger.info("%s works again", self._name)
            self._num_failures, self._pause_s, self._open_until = 0, _FIRST_PAUSE_S, 0.0
            return was_failing

    def end_pause(self) -> None:
        self._open_until = 0.0


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
