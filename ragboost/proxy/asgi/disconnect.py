"""Cancel the work for a client that has left, in every phase of a request."""

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Self

from starlette.types import Receive, Scope

EXTENSION = "ragboost.connection"
"""What our own server puts into `scope["extensions"]`: under `watch`, a function that takes what to
call when the client has left (at once if it has), or None, when nobody wants to know any more."""


class ClientWatch:
    """Cancels the current task when the client disconnects, and swallows that cancellation.

        async with ClientWatch(scope, receive) as watch:
            ...                       # is cancelled when the client leaves
            watch.finish()            # before the last byte is sent
        if watch.has_left: ...

    Our own server calls back when a connection is lost. From others we learn it by reading the
    channel, in a task of its own; the request's body must have been received then.
    """

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self.has_left = False
        connection = scope.get("extensions", {}).get(EXTENSION, {})
        self._watch_connection: Callable[[Callable[[], None] | None], None] | None
        self._watch_connection = connection.get("watch")
        self._receive = receive
        self._is_finished = False
        self._watcher: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        if self._watch_connection is not None:
            self._watch_connection(self._leave)
        else:
            self._watcher = asyncio.create_task(self._watch())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        self._is_finished = True
        if self._watch_connection is not None:
            self._watch_connection(None)
        if self._watcher is not None:
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
        self._leave()

    def _leave(self) -> None:
        if not self._is_finished:
            self.has_left = True
            self._task.cancel()
