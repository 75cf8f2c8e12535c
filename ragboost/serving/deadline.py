"""A deadline on an event loop that is often replaced."""

import asyncio
from collections.abc import Callable


class Deadline:
    """The time at which a callback is called.

    The timer of an earlier deadline is kept: it finds that it is too early, and sets another.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._due: float | None = None
        self._callback: Callable[[], None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = 0.0

    def set(self, seconds: float, callback: Callable[[], None]) -> None:
        self._due, self._callback = self._loop.time() + seconds, callback
        if self._timer is None or self._due < self._timer_due:
            self._set_timer(self._due)

    def clear(self) -> None:
        self._due = self._callback = None

    def cancel(self) -> None:
        self.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set_timer(self, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_due = due
        self._timer = self._loop.call_at(due, self._check)

    def _check(self) -> None:
        self._timer = None
        if self._due is None or self._callback is None:
            return
        if self._loop.time() < self._due:
            self._set_timer(self._due)
            return
        callback = self._callback
        self.clear()
        callback()
