"""Keep large bodies off the event loop, and measure the proxy's own time without its waits."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

# For smaller bodies, handing over to a thread costs more than it frees.
_THREAD_BYTES = 256 * 1024

T = TypeVar("T")


def is_large(raw: bytes) -> bool:
    """Return True if work on a body belongs into a thread."""
    return len(raw) > _THREAD_BYTES


async def call(work: Callable[[], T], *, in_thread: bool) -> T:
    """Call a function, here or in a worker thread."""
    if in_thread:
        return await asyncio.to_thread(work)
    return work()


class Stopwatch:
    """Measure the time since it was made, except while `without` awaits."""

    def __init__(self) -> None:
        self._started = time.perf_counter()

    @property
    def seconds(self) -> float:
        """The time so far."""
        return time.perf_counter() - self._started

    async def without(self, awaited: Awaitable[T]) -> T:
        """Await something that does not count."""
        before = time.perf_counter()
        result = await awaited
        self._started += time.perf_counter() - before
        return result
