"""A few daemon threads for work that may hang, and when to stop trying. A hung piece of work holds
up neither its caller nor the end of the process."""

import logging
import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress

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
        """True while the store is not to be asked."""
        return self._clock() < self._open_until

    @property
    def is_failing(self) -> bool:
        return self._num_failures >= _MAX_FAILURES

    def failed(self, *, is_hung: bool = False) -> None:
        """Note a failure; one that hangs counts as three."""
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
