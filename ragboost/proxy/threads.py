"""Keep work on large requests off the event loop."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from ragboost.rewriting.parsed_request import ParsedRequest

T = TypeVar("T")

# Smaller requests stay on the event loop: handing over to a thread costs more than it frees.
_THREAD_BYTES = 256 * 1024
_THREAD_DOCUMENTS = 1000  # boosting so many takes about 10 ms


def needs_thread(request: ParsedRequest) -> bool:
    """Return True if boosting a request takes too long for the event loop."""
    num = len(request.found.documents) if request.found is not None else 0
    return num > _THREAD_DOCUMENTS or len(request.body.raw) > _THREAD_BYTES


async def run_bytes(work: Callable[[], T], num_bytes: int, *, max_bytes: int = _THREAD_BYTES) -> T:
    """Do work on a body, in a thread if that has more than `max_bytes`."""
    return await asyncio.to_thread(work) if num_bytes > max_bytes else work()
