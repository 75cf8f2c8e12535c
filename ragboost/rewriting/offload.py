"""Keep large bodies off the event loop, and tell our own time from time spent waiting."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

# Larger bodies are worked on in a thread: below this, handing over costs more than it frees.
_THREAD_BYTES = 256 * 1024

T = TypeVar("T")


def is_large(raw: bytes) -> bool:
    """Whether work on a body belongs into a thread."""
    return len(raw) > _THREAD_BYTES


async def call(work: Callable[[], T], *, in_thread: bool) -> T:
    """Do some work, here or in a worker thread."""
    if in_thread:
        return await asyncio.to_thread(work)
    return work()


class Stopwatch:
    """The seconds since it was made, without those of what is awaited by `without`."""

    def __init__(self) -> None:
        self._started = time.perf_counter()

    @property
    def seconds(self) -> float:
        """The time so far."""
        return time.perf_counter() - self._started

    async def without(self, awaited: Awaitable[T]) -> T:
        """Await something that is not our own time."""
        before = time.perf_counter()
        result = await awaited
        self._started += time.perf_counter() - before
        return result
