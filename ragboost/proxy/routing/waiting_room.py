"""Hold requests until they are planned together and a backend has room for them.

An idle backend is given requests at once; while all are busy, a request waits up to `window_ms` for
others to be planned with. Batches keep the order of arrival, so a request is overtaken only by
others of its batch, fewer than `max_batch`. Does not know documents, or how a backend is chosen.
"""

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from ragboost.config import WaitingRoomSettings
from ragboost.errors import RequestError
from ragboost.proxy.routing.assignment import Assignment, RoutingRequest
from ragboost.proxy.upstream.backends import Backend, Backends

Assign = Callable[[Sequence[RoutingRequest]], Awaitable[Sequence[Assignment]]]


class TooManyWaitingError(RequestError):
    """The waiting room already holds `waiting_room.max_waiting` requests."""

    status = 429

    def __init__(self, num_waiting: int, *, retry_after_s: int) -> None:
        super().__init__(
            f"{num_waiting} requests are already waiting (waiting_room.max_waiting); "
            f"retry after {retry_after_s} s"
        )
        self.retry_after_s = retry_after_s


class _Waiting:
    """A request in the waiting room; `assignment` is its assignment, once it has been planned."""

    __slots__ = ("assignment", "held_until", "released", "request", "since")

    def __init__(
        self, request: RoutingRequest, *, since: float, released: "asyncio.Future[Assignment]"
    ) -> None:
        self.request = request
        self.since = since
        self.released = released
        self.assignment: Assignment | None = None
        self.held_until: float | None = None


class WaitingRoom:
    """One queue in leading of all backends, used on one event loop.

    Args:
        assign: chooses backends for a batch of requests, and the order in which to send it.
        backends: the backends that requests wait for.
        settings: the limits; unless `mode` is `window`, requests only wait for a backend with room.
    """

    def __init__(self, assign: Assign, backends: Backends, settings: WaitingRoomSettings) -> None:
        self._assign = assign
        self._backends = backends
        is_window = settings.mode == "window"
        self._max_waiting = settings.max_waiting
        self._max_batch = settings.max_batch if is_window else 1
        self._window_s = settings.window_ms / 1000 if is_window else 0.0
        self._hold_s = settings.hold_for_prefill_ms / 1000
        self._arrived: dict[_Waiting, None] = {}  # in order of arrival
        self._ready: dict[Backend, deque[_Waiting]] = {b: deque() for b in backends.all}
        self._prefilling: dict[Assignment, None] = {}
        self._planning: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        """Return the number of waiting requests."""
        return len(self._arrived) + sum(map(len, self._ready.values()))

    async def enter(self, request: RoutingRequest) -> Assignment:
        """Wait until a request may be sent, and return its assignment, started.

        The caller must call `update` when the backend begins its response and when that has ended.
        A caller that is cancelled leaves the queue.

        Raises:
            TooManyWaitingError: the queue is full.
        """
        loop = asyncio.get_running_loop()
        if len(self) >= self._max_waiting:
            raise TooManyWaitingError(len(self), retry_after_s=self._retry_after_s(loop.time()))
        waiting = _Waiting(request, since=loop.time(), released=loop.create_future())
        self._arrived[waiting] = None
        self.update()
        try:
            return await waiting.released
        except asyncio.CancelledError:
            self._leave(waiting)
            raise

    def update(self) -> None:
        """Release the requests that may be sent, and plan those that are due."""
        for backend, ready in self._ready.items():
            self._release(backend, ready)
        # Requests still ready although their backend has room are held for another's prefill.
        if (
            self._planning is None
            and self._arrived
            and any(b.is_healthy and b.has_room for b in self._ready)
        ):
            now = asyncio.get_running_loop().time()
            due = self._due()
            if due > now:
                self._wake_at(due)
            else:
                batch = list(self._arrived)[: self._max_batch]
                self._planning = asyncio.create_task(self._plan(batch))
                self._planning.add_done_callback(self._planned)

    def close(self) -> None:
        """Cancel timers and planning."""
        if self._timer is not None:
            self._timer.cancel()
        if self._planning is not None:
            self._planning.cancel()

    def _due(self) -> float:
        """Return the time at which to plan the next batch: 0 if it is full or a backend is idle."""
        if len(self._arrived) >= self._max_batch:
            return 0.0
        if any(not backend.load.assigned for backend in self._backends.candidates()):
            return 0.0
        return next(iter(self._arrived)).since + self._window_s

    async def _plan(self, batch: Sequence[_Waiting]) -> None:
        assignments = await self._assign([waiting.request for waiting in batch])
        by_request = {waiting.request: waiting for waiting in batch}
        for assignment in assignments:
            waiting = by_request[assignment.request]
            if waiting not in self._arrived:  # its caller was cancelled
                assignment.close()
                continue
            del self._arrived[waiting]
            waiting.assignment = assignment
            self._ready[assignment.backend].append(waiting)

    def _planned(self, task: "asyncio.Task[None]") -> None:
        self._planning = None
        if task.cancelled():
            return
        if (error := task.exception()) is not None:  # a bug: raise it in every waiting caller
            for waiting in self._arrived:
                if not waiting.released.done():  # else it was cancelled just now
                    waiting.released.set_exception(error)
            self._arrived.clear()
            return
        self.update()

    def _release(self, backend: Backend, ready: deque[_Waiting]) -> None:
        if not ready:
            return
        now = asyncio.get_running_loop().time()
        for waiting in list(ready):
            if not backend.has_room:
                return
            assert waiting.assignment is not None, "a ready request has been planned"
            if self._is_held(waiting, waiting.assignment, now):
                continue
            ready.remove(waiting)
            waiting.assignment.start()
            if self._hold_s:
                self._prefilling[waiting.assignment] = None
            if not waiting.released.done():
                waiting.released.set_result(waiting.assignment)

    def _is_held(self, waiting: _Waiting, assignment: Assignment, now: float) -> bool:
        """Return True while another request computes a part of this one's prompt.

        Up to `hold_for_prefill_ms`.
        """
        if not self._hold_s:
            return False
        self._prefilling = {t: None for t in self._prefilling if t.is_prefilling}
        if not any(_computes_for(other, assignment) for other in self._prefilling):
            return False
        if waiting.held_until is None:
            waiting.held_until = now + self._hold_s
        if now >= waiting.held_until:
            return False
        self._wake_at(waiting.held_until)
        return True

    def _leave(self, waiting: _Waiting) -> None:
        """Remove a request in any state."""
        self._arrived.pop(waiting, None)
        if waiting.assignment is not None:
            ready = self._ready[waiting.assignment.backend]
            if waiting in ready:
                ready.remove(waiting)
            waiting.assignment.close()
        self.update()

    def _retry_after_s(self, now: float) -> int:
        """Return the longest wait so far, in whole seconds."""
        waiting = [*self._arrived, *(w for ready in self._ready.values() for w in ready)]
        return max(1, math.ceil(now - min(each.since for each in waiting)))

    def _wake_at(self, when: float) -> None:
        if self._timer is not None and not self._timer.cancelled() and self._timer.when() <= when:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(when, self._wake)

    def _wake(self) -> None:
        self._timer = None
        self.update()


def _computes_for(other: Assignment, assignment: Assignment) -> bool:
    """Return True if `other` is computing documents with which `assignment` begins."""
    one, two = other.planned, assignment.planned
    if one is None or two is None or other.backend is not assignment.backend:
        return False
    if other.request.tenant is not assignment.request.tenant:
        return False
    shared = 0
    for left, right, length in zip(one.elements, two.elements, one.tokens, strict=False):
        if left != right:
            break
        shared += length
    return shared > one.cached_tokens
