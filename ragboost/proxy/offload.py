"""Keep large bodies off the event loop."""

import asyncio
from collections.abc import Callable
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
