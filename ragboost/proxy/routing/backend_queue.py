"""The requests that wait for one backend, and the one of them that is sent next.

What reordering costs a request is bounded by a virtual queue in which nobody would overtake it: its
place there is the tokens that would be computed before it in order of arrival, or, where several
teams wait, in equal shares. What sharing saves beyond what it would save there is a lead that may
be spent on overtaking; a prefix that is still being computed for another request has saved nothing
until its time shows that it was found.
"""

import asyncio
import math
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

from ragboost.ordering import Order
from ragboost.proxy.routing.admission import NO_AWAITS, Admission, Awaits
from ragboost.proxy.routing.prefill_pace import PrefillPace
from ragboost.proxy.upstream.backend import Backend


class Place(NamedTuple):
    """A place in the virtual queue; a smaller one is earlier."""

    begin: float  # tokens that may be sent before the request
    number: int
    tokens: int  # to compute for the request
    team: str  # whose request it is
    span: int  # what it adds to `begin` of its team's next request

    def is_behind(self, other: "Place") -> bool:
        return self.team == other.team and self.number > other.number

    def moved_up(self, span: int) -> "Place":
        return self._replace(begin=self.begin - span)


class VirtualQueue:
    def __init__(self) -> None:
        self._sent = 0.0  # tokens
        self._num_arrived = 0
        self._ends: dict[str, float] = {}  # by team that waits
        self._waiting: dict[str, int] = {}

    def __len__(self) -> int:
        return sum(self._waiting.values())

    def enter(self, team: str, tokens: int) -> Place:
        self._waiting[team] = self._waiting.get(team, 0) + 1
        begin = max(self._sent, self._ends.get(team, 0.0))
        # While others wait, a team gets an equal share of the backend.
        span = tokens * len(self._waiting)
        self._ends[team] = begin + span
        self._num_arrived += 1
        return Place(begin, self._num_arrived, tokens, team, span)

    def abandon(self, place: Place) -> None:
        """Remove a request that will not be sent; the caller moves up those behind it.

        Otherwise the tokens that nobody computes would look like tokens that sharing has saved.
        """
        self._ends[place.team] -= place.span
        self.leave(place)

    def leave(self, place: Place) -> None:
        self._waiting[place.team] -= 1
        if not self._waiting[place.team]:
            del self._waiting[place.team], self._ends[place.team]

    def sent(self, tokens: int) -> None:
        """Count the tokens of a request that is sent, whether it has waited or not."""
        self._sent += tokens

    def lead(self, places: list[Place]) -> float:
        """Return the tokens that may be sent now before all these places, in their order."""
        lead, ahead = float("inf"), 0
        for place in places:
            lead = min(lead, place.begin - self._sent - ahead)
            ahead += place.tokens
        return lead


_COMPUTED_BEHIND = 0.9  # of its own time, since what it awaited was computed
_MAX_WAIT_S = 30.0  # then a request is sent, however busy the backend is

Plan = Callable[["BackendQueue"], Coroutine[Any, Any, None]]


class QueuedRequest:
    """A request that waits; `place` is its place in the virtual queue of its backend."""

    __slots__ = ("admission", "place", "released", "since")

    def __init__(self, admission: Admission, place: Place, *, since: float) -> None:
        self.admission = admission
        self.place = place
        self.since = since
        self.released: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class BackendQueue:
    """One backend's queue; without a pace it is busy only at its `max_concurrency`.

    `plan` calls `set_next` with the request to send next; without it, that is the first one.
    """

    def __init__(
        self,
        backend: Backend,
        pace: PrefillPace | None,
        *,
        plan: Plan | None,
        update: Callable[[], None],
    ) -> None:
        self.backend = backend
        self.pace = pace
        self.waiting: dict[QueuedRequest, None] = {}  # the longest wait first
        self.places = VirtualQueue()
        self._plan = plan
        self._update = update
        self._next: tuple[QueuedRequest, str] | None = None  # and how it was chosen
        self._planning: asyncio.Task[None] | None = None

    def has_room(self, now: float) -> bool:
        """Return True if a request that is sent now would not queue in the backend."""
        return self.backend.has_room and not (self.pace is not None and self.pace.is_busy(now))

    def send(self, admission: Admission, now: float) -> None:
        admission.start()
        self.places.sent(admission.uncached_tokens)
        if self.pace is not None:
            self.pace.sent(admission, now)

    def add(self, admission: Admission, *, team: str, tokens: int, since: float) -> QueuedRequest:
        """Let a request wait; `tokens` are to be computed for it."""
        queued = QueuedRequest(admission, self.places.enter(team, tokens), since=since)
        self.waiting[queued] = None
        return queued

    def take(self, queued: QueuedRequest) -> None:
        """Remove a request that waits for another backend now, or whose client has gone."""
        if self._remove(queued):
            self.places.abandon(queued.place)
            for other in self.waiting:
                if other.place.is_behind(queued.place):
                    other.place = other.place.moved_up(queued.place.span)

    def receive(self, queued: QueuedRequest) -> None:
        queued.place = self.places.enter(queued.place.team, queued.admission.uncached_tokens)
        in_order = sorted((*self.waiting, queued), key=lambda waiting: waiting.since)
        self.waiting = dict.fromkeys(in_order)

    def set_next(self, queued: QueuedRequest, *, how: str) -> None:
        if queued in self.waiting:
            self._next = queued, how

    def eligible(self) -> list[QueuedRequest]:
        """Return the requests that may be next, of a conversation the first, by urgency."""
        first: dict[str, QueuedRequest] = {}
        for queued in self.waiting:
            if name := queued.admission.request.conversation:
                first.setdefault(name, queued)
        return sorted(
            (
                queued
                for queued in self.waiting
                if first.get(queued.admission.request.conversation, queued) is queued
            ),
            key=lambda queued: (queued.admission.request.priority, queued.place),
        )

    def release(self, now: float) -> None:
        """Send the next request if the backend has room, and have another one chosen."""
        if self._plan is None:
            while self.waiting and self.has_room(now):
                self.let_go(min(self.waiting, key=_priority), now, how="alone")
            return
        if self._next is not None and self.has_room(now):
            self.let_go(self._next[0], now, how=self._next[1])
        if self.waiting and self._next is None and self._planning is None and self.has_room(now):
            self._planning = asyncio.create_task(self._plan(self))
            self._planning.add_done_callback(self._planned)

    def release_expired(self, now: float) -> None:
        """Send those who have waited for too long, as far as `max_concurrency` allows it."""
        for queued in list(self.waiting):
            if queued.since + _MAX_WAIT_S > now or not self.backend.has_room:
                return
            self.let_go(queued, now, how="max_wait")

    def let_go(self, queued: QueuedRequest, now: float, *, how: str) -> None:
        admission = queued.admission
        admission.awaits = awaits = self.awaits(admission)
        self.places.sent(awaits.tokens)
        if self._remove(queued):
            self.places.leave(queued.place)
        admission.release = how
        self.send(admission, now)
        if not queued.released.done():
            queued.released.set_result(None)

    def next_update(self, now: float) -> float:
        if self.pace is None or not self.waiting or not self.backend.has_room:
            return math.inf
        return min(next(iter(self.waiting)).since + _MAX_WAIT_S, self.pace.next_expiry(now))

    def better_off(self, other: "BackendQueue", now: float) -> QueuedRequest | None:
        """Return the most urgent request that another backend would have computed sooner."""
        if self.pace is None or other.pace is None or not self.backend.has_room:
            # Nobody waits while a backend has room.
            return min(self.waiting, key=_priority, default=None)
        ahead = self.pace.outstanding_tokens(now)
        own_s, other_s = self.pace.token_s, other.pace.token_s
        ratio = other_s / own_s if own_s and other_s else 1.0
        for queued in self.eligible():
            admission = queued.admission
            cached = admission.cached_in(other.backend)
            if (admission.request.prompt_tokens - cached) * ratio < ahead + queued.place.tokens:
                return queued
            ahead += queued.place.tokens
        return None

    def close(self) -> None:
        if self._planning is not None:
            self._planning.cancel()
        for queued in list(self.waiting):
            self.let_go(queued, queued.released.get_loop().time(), how="max_wait")

    def awaits(self, admission: Admission) -> Awaits:
        """Return which cached tokens of a request are still being computed for others.

        A backend that computes prompts side by side may compute them again.
        """
        planned, tenant = admission.planned, admission.request.tenant
        awaits = NO_AWAITS
        if planned is None or self.pace is None:
            return awaits
        for other in self.pace.outstanding():
            if other.planned is not None and other.request.tenant is tenant:
                held = other.planned.cached_tokens - other.awaits.tokens
                tokens = planned.cached_tokens - held
                if tokens > awaits.tokens and _common_tokens(planned, other.planned) > held:
                    awaits = Awaits(tokens, other)
        return awaits

    def begun(self, admission: Admission, now: float, *, is_stream: bool) -> None:
        """Note that a response has begun; what it awaited was cached if there was time for it."""
        if self.pace is None:
            return
        tokens, other = admission.awaits
        admission.awaits, admission.begun_at = NO_AWAITS, now
        if other is not None and other.begun_at is not None:
            own_s = self.pace.own_s(admission.uncached_tokens)
            if now - other.begun_at >= _COMPUTED_BEHIND * own_s:
                self.places.sent(-tokens)
        self.pace.begun(admission, now, is_stream=is_stream)

    def _remove(self, queued: QueuedRequest) -> bool:
        if queued not in self.waiting:
            return False
        del self.waiting[queued]
        if self._next is not None and self._next[0] is queued:
            self._next = None
        return True

    def _planned(self, task: "asyncio.Task[None]") -> None:
        self._planning = None
        if task.cancelled():
            return
        if (error := task.exception()) is not None:  # a bug: raise it in every waiting caller
            for queued in list(self.waiting):
                self.take(queued)
                if not queued.released.done():
                    queued.released.set_exception(error)
            return
        self._update()


def _common_tokens(order: Order, other: Order) -> int:
    """Return the tokens of the documents with which both begin."""
    common = 0
    for document, tokens, theirs in zip(
        order.documents, order.tokens, other.documents, strict=False
    ):
        if document != theirs:
            break
        common += tokens
    return common


def _priority(queued: QueuedRequest) -> int:
    return queued.admission.request.priority
