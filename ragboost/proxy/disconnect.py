"""Cancel the work for a client that has left, in every phase of a request."""

import asyncio
from types import TracebackType
from typing import Self

from starlette.types import Receive


class ClientWatch:
    """Cancels the current task when the client disconnects, and swallows that cancellation.

        async with ClientWatch(receive) as watch:
            ...                       # is cancelled when the client leaves
            watch.finish()            # before the last byte is sent
        if watch.has_left: ...

    The request's body must have been received: the channel is read here from now on.
    """

    def __init__(self, receive: Receive) -> None:
        self.has_left = False
        self._receive = receive
        self._is_finished = False

    async def __aenter__(self) -> Self:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._watcher = asyncio.create_task(self._watch())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        self._is_finished = True
        self._watcher.cancel()
        if not self.has_left:
            return False
        # `uncancel` leaves a count if somebody else, such as the server's shutdown, cancelled too.
        return self._task.uncancel() == 0 and kind is asyncio.CancelledError

    def finish(self) -> None:
        """Stop watching: the server reports a disconnect after each complete answer, too."""
        self._is_finished = True

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        if not self._is_finished:
            self.has_left = True
            self._task.cancel()
