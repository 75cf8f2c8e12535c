"""Keep work on large requests, and calls that may hang, off the event loop."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from threading import Thread
from typing import Generic, TypeVar

from ragboost.rewriting.parsed_request import LARGE_BYTES

T = TypeVar("T")


async def run_bytes(work: Callable[[], T], num_bytes: int, *, max_bytes: int = LARGE_BYTES) -> T:
    """Do work on a body, in a thread if that has more than `max_bytes`."""
    return await asyncio.to_thread(work) if num_bytes > max_bytes else work()


class HangingCall(Generic[T]):
    """A call that may never return, such as a look at a file of a file system that hangs.

    Runs in a thread of its own, of which there is never a second, and which ends with the process.
    """

    def __init__(self, call: Callable[[], T]) -> None:
        self._call = call
        self._result: asyncio.Future[T] | None = None  # that has not been read

    async def result(self, *, timeout_s: float) -> T:
        """Call, unless an earlier call has not been read, and return what it returned or raise
        what it raised.

        Raises:
            TimeoutError: it has not returned; what it returns later is for the next time.
        """
        if self._result is None:
            self._result = asyncio.get_running_loop().create_future()
            Thread(target=self._run, args=(self._result,), daemon=True).start()
        await asyncio.wait([self._result], timeout=timeout_s)
        if not self._result.done():
            raise TimeoutError
        result, self._result = self._result, None
        return result.result()

    def _run(self, result: "asyncio.Future[T]") -> None:
        try:
            end = partial(result.set_result, self._call())
        except Exception as error:  # noqa: BLE001 - raised where it is waited for
            end = partial(result.set_exception, error)
        with suppress(RuntimeError):  # the event loop has ended
            result.get_loop().call_soon_threadsafe(end)
