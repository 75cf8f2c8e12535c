"""Hold requests while their backend is busy, and send first what shares a cached prefix.

A request is held only where it would queue in the backend anyway; the virtual queue bounds what may
overtake it. With `off`, requests wait only for `max_concurrency`, in order of arrival.
"""

import asyncio
import logging
import math
from collections.abc import Sequence
from contextlib import suppress

from ragboost.config import WaitingRoomSettings
from ragboost.errors import RagBoostError, RequestError
from ragboost.proxy.routing.admission import Admission
from ragboost.proxy.routing.backend_queue import BackendQueue, QueuedRequest
from ragboost.proxy.routing.prefill_pace import PrefillPace
from ragboost.proxy.routing.router import Router
from ragboost.proxy.upstream.backend import Backend
from ragboost.proxy.upstream.backends import Backends

logger = logging.getLogger(__name__)

_MAX_BATCH = 64  # requests planned together
_MAX_PLANNED_DOCUMENTS = 3200  # planning so many takes 3 to 4 ms


class TooManyWaitingError(RequestError):
    """The waiting room already holds `waiting_room.max_waiting` requests."""

    status = 429

    def __init__(self, num_waiting: int, *, retry_after_s: int) -> None:
        super().__init__(
            f"{num_waiting} requests are already waiting (waiting_room.max_waiting); "
            f"retry after {retry_after_s} s"
        )
        self.retry_after_s = retry_after_s


class WaitingRoom:
    """One queue per backend, used on one event loop."""

    def __init__(self, router: Router, backends: Backends, settings: WaitingRoomSettings) -> None:
        self._router = router
        self._max_waiting = settings.max_waiting
        self._is_adaptive = settings.mode == "adaptive"
        # What is known about the speed of each backend; with `off` it does not matter.
        self.paces: dict[Backend, PrefillPace] = {}
        self._queues: dict[Backend, BackendQueue] = {}
        for backend in backends.all:
            self._add(backend)
        backends.on_added.append(self._add)
        backends.on_removed.append(self._remove)
        self._timer: asyncio.TimerHandle | None = None
        backends.on_down.append(lambda _: self.update())
        backends.on_up.append(self.update)

    def __len__(self) -> int:
        return sum(len(queue.waiting) for queue in self._queues.values())

    def _add(self, backend: Backend) -> None:
        plan = self._plan if self._is_adaptive else None
        pace = PrefillPace() if self._is_adaptive else None
        self._queues[backend] = BackendQueue(backend, pace, plan=plan, update=self.update)
        if pace is not None:
            self.paces[backend] = pace

    def _remove(self, backend: Backend) -> None:
        self._queues.pop(backend).close()
        self.paces.pop(backend, None)

    async def enter(self, admission: Admission) -> None:
        """Assign a request, and wait until it may be sent; it is started.

        The caller must call `begun` when the backend begins its response, and `update` when that
        has ended. A caller that is cancelled leaves the queue.
        """
        try:
            await self._router.place(admission)
            await self._enter(admission)
        except BaseException:
            admission.close()
            self.update()
            raise

    def begun(self, admission: Admission, *, is_stream: bool) -> None:
        if self._is_adaptive:
            now = asyncio.get_running_loop().time()
            self._queues[admission.backend].begun(admission, now, is_stream=is_stream)

    def update(self) -> None:
        now = asyncio.get_running_loop().time()
        for queue in self._queues.values():
            if queue.waiting and not queue.backend.is_healthy:
                self._move_away(queue)
        for queue in self._queues.values():
            if self._is_adaptive:
                queue.release_expired(now)
            queue.release(now)
        if len(self._queues) > 1 and len(self):
            self._share(now)
        self._set_timer(now)

    def close(self) -> None:
        """Cancel timers and planning, and release everybody: the event loop ends."""
        if self._timer is not None:
            self._timer.cancel()
        for queue in self._queues.values():
            queue.close()

    async def _enter(self, admission: Admission) -> None:
        queue = self._queues[admission.backend]
        now = asyncio.get_running_loop().time()
        if not queue.waiting and queue.has_room(now):
            queue.send(admission, now)
            return
        if len(self) >= self._max_waiting:
            if not admission.backend.has_room:
                raise TooManyWaitingError(len(self), retry_after_s=self._retry_after_s(now))
            if not queue.waiting:
                queue.send(admission, now)
                return
            queue.let_go(queue.eligible()[0], now, how="full")  # it queues in the backend
        team, tokens = "", admission.uncached_tokens
        if self._is_adaptive:
            tenant = admission.request.tenant
            team = tenant.key.team if tenant is not None else ""
            tokens = _expected_tokens(admission, is_first=not queue.waiting)
        queued = queue.add(admission, team=team, tokens=tokens, since=now)
        try:
            self.update()
            await queued.released
        finally:
            self._queues[admission.backend].take(queued)

    async def _plan(self, queue: BackendQueue) -> None:
        """Choose the requests to send next: the most urgent one, or those with a cached prefix."""
        waiting = queue.eligible()
        if not waiting:
            return
        urgent = waiting[0]
        waiting = [
            q for q in waiting if q.admission.request.priority == urgent.admission.request.priority
        ]
        if urgent.admission.request.plannable is None:
            queue.set_next(urgent, how="alone")
            return
        lead = queue.places.lead([queued.place for queued in waiting])
        sharing = self._window(waiting)
        ready = [queued for queued in sharing if not self._shares_with_any(queued.admission)]
        if ready and (ready[0] is urgent or ready[0].place.tokens <= lead):
            sharing = ready
        window = {queued.admission: queued for queued in sharing}
        chosen = await _plan_next(list(window), budget_tokens=lead)
        tokens = chosen.uncached_tokens + queue.awaits(chosen).tokens
        if chosen is not urgent.admission and urgent.admission in window and tokens > lead:
            chosen = await _plan_next(list(window), budget_tokens=-math.inf)
        queue.set_next(window[chosen], how="planned" if len(window) > 1 else "alone")

    def _window(self, waiting: list[QueuedRequest]) -> list[QueuedRequest]:
        """Return the requests to plan together: those of the most urgent one's tenant."""
        tenant = waiting[0].admission.request.tenant
        window: list[QueuedRequest] = []
        num_documents = 0
        for queued in waiting:
            request, plannable = queued.admission.request, queued.admission.request.plannable
            if request.tenant is not tenant or plannable is None:
                continue
            num_documents += len(plannable.documents)
            if window and num_documents > _MAX_PLANNED_DOCUMENTS:
                break
            window.append(queued)
            if len(window) == _MAX_BATCH:
                break
        return window

    def _share(self, now: float) -> None:
        """Send requests that wait for a busy backend to one where they begin sooner."""
        for queue in self._queues.values():
            while not queue.waiting and queue.has_room(now) and queue.backend.is_healthy:
                queued = self._better_off(queue, now)
                if queued is None:
                    break
                self._queues[queued.admission.backend].take(queued)
                queued.admission.move(queue.backend)
                queue.receive(queued)
                queue.let_go(queued, now, how="alone")

    def _better_off(self, queue: BackendQueue, now: float) -> QueuedRequest | None:
        """Return a request that would begin sooner here; with `off`, the longest wait."""
        others = (other for other in self._queues.values() if other.waiting)
        better_off = (queued for other in others if (queued := other.better_off(queue, now)))
        if self._is_adaptive:
            return next(better_off, None)
        return min(better_off, key=lambda q: (q.admission.request.priority, q.since), default=None)

    def _move_away(self, queue: BackendQueue) -> None:
        """Pass on those who wait for a backend that is down or removed, if another is better."""
        is_removed = queue.backend not in self._router.backends.all
        for queued in list(queue.waiting):
            target = self._router.choose(queued.admission.request.prompt_tokens, cached_tokens={})
            if target is None or not (target.is_healthy or is_removed):
                return
            queue.take(queued)
            queued.admission.move(target)
            self._queues[target].receive(queued)

    def _set_timer(self, now: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = min((queue.next_update(now) for queue in self._queues.values()), default=math.inf)
        if due != math.inf:
            self._timer = asyncio.get_running_loop().call_at(max(due, now), self.update)

    def _retry_after_s(self, now: float) -> int:
        since = [queued.since for queue in self._queues.values() for queued in queue.waiting]
        return max(1, math.ceil(now - min(since, default=now)))

    def _shares_with_any(self, admission: Admission) -> bool:
        computing = self.paces[admission.backend].outstanding()
        return any(_is_awaited(other, admission) for other in computing)


def _is_awaited(other: Admission, admission: Admission) -> bool:
    computing, documents = other.request.plannable, admission.request.plannable
    if other.planned is None or computing is None or documents is None:
        return False
    if other.request.tenant is not admission.request.tenant:
        return False
    if computing.prompt_prefix != documents.prompt_prefix:
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


def _expected_tokens(admission: Admission, *, is_first: bool) -> int:
    """Return the tokens that a backend would have to compute if all that wait were sent in order of
    arrival, as far as is known without waiting."""
    leading, tenant = admission.request.plannable, admission.request.tenant
    if leading is not None and tenant is not None and not tenant.lock.locked():
        booster = tenant.booster(admission.backend.name)
        with suppress(RagBoostError):  # it will be boosted or bypassed later
            cached = booster.cached_tokens(leading.documents, prompt_prefix=leading.prompt_prefix)
            admission.expect(cached)
            in_order = booster.arrive(leading, is_first=is_first)
            return min(
                admission.uncached_tokens, max(0, admission.request.prompt_tokens - in_order)
            )
    return admission.uncached_tokens


async def _plan_next(admissions: Sequence[Admission], *, budget_tokens: float) -> Admission:
    """Choose which of a tenant's requests to send next, the most urgent first, and plan it."""
    tenant = admissions[0].request.tenant
    assert tenant is not None, "a plannable request has a tenant"
    requests = [admission.request.plannable for admission in admissions]
    async with tenant.lock:
        booster = tenant.booster(admissions[0].backend.name)
        try:
            at, planned = booster.plan_next(
                [request for request in requests if request is not None],
                budget_tokens=budget_tokens,
            )
        except RagBoostError as error:  # each will be boosted or bypassed on its own
            logger.warning("cannot plan %d requests together: %s", len(admissions), error)
            return admissions[0]
    admission = admissions[at]
    admission.planned = planned
    admission.expect(planned.cached_tokens)
    return admission
