"""Hold requests while their backend is busy, and send first what shares a cached prefix.

A request is held only where it would queue in the backend anyway: nobody waits for an idle backend,
or for one whose pace is unknown. Each time one can be sent, those that wait are planned together;
one whose prefix is just being computed for another waits for that, if it can. What may overtake
whom is bounded by the virtual queue. Does not know how a backend is chosen.
"""

import asyncio
import math

from ragboost.config import WaitingRoomSettings
from ragboost.proxy.routing.assignment import Assignment, RoutingRequest
from ragboost.proxy.routing.lane import HeldRequest, Lane
from ragboost.proxy.routing.prefill_pace import PrefillPace
from ragboost.proxy.routing.router import Router, expected_tokens, plan_next
from ragboost.proxy.routing.waiting_room import TooManyWaitingError
from ragboost.proxy.upstream.backends import Backend, Backends

_MAX_PLANNED_DOCUMENTS = 1000  # planning so many takes about 10 ms


class AdaptiveRoom:
    """One queue per backend, used on one event loop.

    Args:
        router: chooses a backend for each request.
        backends: the backends.
        settings: the limits.

    Attributes:
        paces: what is known about the speed of each backend.
    """

    def __init__(self, router: Router, backends: Backends, settings: WaitingRoomSettings) -> None:
        self._router = router
        self._max_waiting = settings.max_waiting
        self._max_wait_s = settings.max_wait_ms / 1000
        self._max_batch = settings.max_batch
        self.paces = {backend: PrefillPace() for backend in backends.all}
        self._lanes = {
            backend: Lane(backend, pace, plan=self._plan, update=self.update)
            for backend, pace in self.paces.items()
        }
        self._timer: asyncio.TimerHandle | None = None
        backends.on_down.append(self._move_all)

    def __len__(self) -> int:
        """Return the number of waiting requests."""
        return sum(len(lane.held) for lane in self._lanes.values())

    async def enter(self, request: RoutingRequest) -> Assignment:
        """Wait until a request may be sent, and return its assignment, started.

        The caller must call `begun` when the backend begins its response, and `update` when that
        has ended. A caller that is cancelled leaves the queue.

        Raises:
            TooManyWaitingError: the room is full, and the backend at its `max_concurrency`.
            RequestError: the `ragboost` object is malformed.
        """
        assignment = await self._router.place(request)
        try:
            return await self._enter(assignment)
        except BaseException:
            assignment.close()
            self.update()
            raise

    def begun(self, assignment: Assignment, *, is_stream: bool) -> None:
        """Note that a response has begun, before `Assignment.prefill_done`."""
        now = asyncio.get_running_loop().time()
        self.paces[assignment.backend].begun(assignment, now, is_stream=is_stream)

    def update(self) -> None:
        """Release the requests that may be sent, and plan the next ones."""
        now = asyncio.get_running_loop().time()
        for lane in self._lanes.values():
            lane.release_expired(now, max_wait_s=self._max_wait_s)
            lane.release(now)
        if len(self._lanes) > 1 and len(self):
            self._share(now)
        self._set_timer(now)

    def close(self) -> None:
        """Cancel timers and planning, and release everybody: the event loop ends."""
        if self._timer is not None:
            self._timer.cancel()
        for lane in self._lanes.values():
            lane.close()

    async def _enter(self, assignment: Assignment) -> Assignment:
        lane = self._lanes[assignment.backend]
        now = asyncio.get_running_loop().time()
        has_room = assignment.backend.has_room
        if has_room and not lane.held and not lane.pace.is_busy(now):
            lane.send(assignment, now)
            return assignment
        if len(self) >= self._max_waiting:
            if not has_room:
                raise TooManyWaitingError(len(self), retry_after_s=self._retry_after_s(now))
            if not lane.held:
                lane.send(assignment, now)
                return assignment
            lane.let_go(lane.eligible()[0], now, how="full")  # it queues in the backend
        tenant = assignment.request.tenant
        team = tenant.key.team if tenant is not None else ""
        held = lane.add(assignment, team=team, tokens=expected_tokens(assignment), since=now)
        try:
            self.update()
            return await held.released
        finally:
            self._lanes[held.assignment.backend].take(held)

    async def _plan(self, lane: Lane) -> None:
        """Choose the requests to send next: the most urgent one, or those with a cached prefix."""
        waiting = lane.eligible()
        if not waiting:
            return
        urgent = waiting[0]
        if urgent.assignment.request.plannable is None:
            lane.set_next(urgent, how="alone")
            return
        lead = lane.queue.lead([held.place for held in waiting])
        sharing = self._window(waiting)
        ready = [held for held in sharing if not _shares_with_any(held.assignment, lane)]
        if ready and (ready[0] is urgent or ready[0].place.tokens <= lead):
            sharing = ready
        window = {held.assignment: held for held in sharing}
        chosen = await plan_next(list(window), budget_tokens=lead)
        lane.set_next(window[chosen], how="planned" if len(window) > 1 else "alone")

    def _window(self, waiting: list[HeldRequest]) -> list[HeldRequest]:
        """Return the requests to plan together: those of the most urgent one's tenant."""
        tenant = waiting[0].assignment.request.tenant
        window: list[HeldRequest] = []
        num_documents = 0
        for held in waiting:
            request = held.assignment.request
            if request.tenant is not tenant or not request.plannable:
                continue
            num_documents += len(request.plannable.documents)
            if window and num_documents > _MAX_PLANNED_DOCUMENTS:
                break
            window.append(held)
            if len(window) == self._max_batch:
                break
        return window

    def _share(self, now: float) -> None:
        """Send requests that wait for a busy backend to one where they begin sooner."""
        lanes = self._lanes.values()
        for lane in lanes:
            for other in lanes:
                while not lane.held and lane.has_room(now) and lane.backend.is_healthy:
                    held = other.better_off(lane, now) if other.held else None
                    if held is None:
                        break
                    other.take(held)
                    held.assignment.move(lane.backend)
                    lane.receive(held)
                    lane.let_go(held, now, how="alone")

    def _move_all(self, backend: Backend) -> None:
        """Move the requests that wait for a backend that is down."""
        lane = self._lanes[backend]
        for held in list(lane.held):
            tokens = held.assignment.request.prompt_tokens
            target = self._router.choose(tokens, cached_tokens={}, exclude=(backend,))
            if target is None:
                return
            lane.take(held)
            held.assignment.move(target)
            self._lanes[target].receive(held)
        self.update()

    def _set_timer(self, now: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = min(
            (lane.next_update(now, max_wait_s=self._max_wait_s) for lane in self._lanes.values()),
            default=math.inf,
        )
        if due != math.inf:
            self._timer = asyncio.get_running_loop().call_at(max(due, now), self.update)

    def _retry_after_s(self, now: float) -> int:
        since = [held.since for lane in self._lanes.values() for held in lane.held]
        return max(1, math.ceil(now - min(since, default=now)))


def _shares_with_any(assignment: Assignment, lane: Lane) -> bool:
    """Return True if a prompt that is being computed would have more of this one's cached later."""
    return any(_is_awaited(other, assignment) for other in lane.pace.outstanding())


def _is_awaited(other: Assignment, assignment: Assignment) -> bool:
    computing, documents = other.request.plannable, assignment.request.plannable
    if other.planned is None or computing is None or documents is None:
        return False
    if other.request.tenant is not assignment.request.tenant:
        return False
    if computing.preamble != documents.preamble:
        return False
    keys = {document.key for document in documents.documents}
    cached = 0
    for at, tokens in zip(other.planned.permutation, other.planned.tokens, strict=True):
        if computing.documents[at].key not in keys:
            return False
        cached += tokens
        if cached > other.planned.cached_tokens:
            return True
    return False
