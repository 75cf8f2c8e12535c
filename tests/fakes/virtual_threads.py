"""Threads that wait in virtual time: a clock that moves only once all of them wait."""

import heapq
import itertools
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from tests.eventually import DEADLINE_S


class VirtualThreads:
    """The clock, and what waits for it. Threads of `workers` call `sleep`; the test's thread calls
    `advance`. Stands in for the module `time`, too."""

    def __init__(self) -> None:
        self.now = 0.0
        self._lock = threading.Condition()
        self._num_running = 0
        self._sleepers: list[tuple[float, int, threading.Event]] = []
        self._count = itertools.count()

    def monotonic(self) -> float:
        return self.now

    perf_counter = monotonic

    def sleep(self, seconds: float) -> None:
        """Wait in a worker's thread."""
        awake = threading.Event()
        with self._lock:
            heapq.heappush(self._sleepers, (self.now + seconds, next(self._count), awake))
            self._num_running -= 1
            self._lock.notify_all()
        awake.wait()

    def advance(self, seconds: float) -> None:
        """Let time pass, with all that happens meanwhile."""
        until = self.now + seconds
        while self.next_at <= until:
            at, _, awake = heapq.heappop(self._sleepers)
            self.now = max(self.now, at)
            with self._lock:
                self._num_running += 1
            awake.set()
        self.now = until

    @property
    def next_at(self) -> float:
        """Time of the next thing that happens by itself, once all threads wait."""
        with self._lock:
            assert self._lock.wait_for(lambda: not self._num_running, DEADLINE_S)
        return self._sleepers[0][0] if self._sleepers else float("inf")

    def workers(self, count: int, *, name: str) -> "_Workers":
        """Make the stand-in of a `Workers`."""
        return _Workers(self, count, name)


class _Workers:
    def __init__(self, time: VirtualThreads, count: int, name: str) -> None:
        self._time, self._name = time, name
        self._queue: deque[Callable[[], None]] = deque()
        self._num_idle, self._may_run = count, threading.Semaphore(0)
        for _ in range(count):
            threading.Thread(target=self._run, name=name, daemon=True).start()

    def submit(self, work: Callable[[], None]) -> bool:
        with self._time._lock:
            self._queue.append(work)
            if self._num_idle:
                self._num_idle -= 1
                self._time._num_running += 1
                self._may_run.release()
        return True

    def close(self, *, timeout_s: float) -> None:
        """Do nothing: the threads are daemons."""

    def _run(self) -> None:
        while self._may_run.acquire():
            while True:
                with self._time._lock:
                    if not self._queue:
                        self._num_idle += 1
                        self._time._num_running -= 1
                        self._time._lock.notify_all()
                        break
                    work = self._queue.popleft()
                with suppress(Exception):
                    work()
