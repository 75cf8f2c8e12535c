"""The requests that wait for one backend, and the one of them that is sent next.

Knows when the backend has room. Does not know how the next request is chosen.
"""

import asyncio
import math
from collections.abc import Callable, Coroutine
from typing import Any

from ragboost.proxy.routing.assignment import Assignment
from ragboost.proxy.routing.prefill_pace import PrefillPace
from ragboost.proxy.routing.virtual_queue import Place, VirtualQueue
from ragboost.proxy.upstream.backends import Backend

Plan = Callable[["Lane"], Coroutine[Any, Any, None]]


class HeldRequest:
    """A request that waits; `place` is its place in the virtual queue of its backend."""

    __slots__ = ("assignment", "place", "released", "since")

    def __init__(self, assignment: Assignment, place: Place, *, since: float) -> None:
        self.assignment = assignment
        self.place = place
        self.since = since
        self.released: asyncio.Future[Assignment] = asyncio.get_running_loop().create_future()


class Lane:
    """One backend's queue.

    Args:
        backend: the backend.
        pace: of the backend.
        plan: chooses the request to send next, and calls `set_next` with it.
        update: called when it has.

    Attributes:
        held: the waiting requests, the one that has waited longest first.
        queue: their places.
    """

    def __init__(
        self, backend: Backend, pace: PrefillPace, *, plan: Plan, update: Callable[[], None]
    ) -> None:
        self.backend = backend
        self.pace = pace
        self.held: dict[HeldRequest, None] = {}
        self.queue = VirtualQueue()
        self._plan = plan
        self._update = update
        self._next: tuple[HeldRequest, str] | None = None  # and how it was chosen
        self._planning: asyncio.Task[None] | None = None

    def has_room(self, now: float) -> bool:
        """Return True if a request that is sent now would not queue in the backend."""
        return self.backend.has_room and not self.pace.is_busy(now)

    def send(self, assignment: Assignment, now: float) -> None:
        """Count a request as sent."""
        assignment.start()
        self.queue.sent(assignment.uncached_tokens)
        self.pace.sent(assignment, now)

    def add(self, assignment: Assignment, *, team: str, tokens: int, since: float) -> HeldRequest:
        """Let a request wait; `tokens` are to be computed for it."""
        held = HeldRequest(assignment, self.queue.enter(team, tokens), since=since)
        self.held[held] = None
        return held

    def take(self, held: HeldRequest) -> None:
        """Remove a request that waits for another backend now, or whose client has gone."""
        if self._remove(held):
            self.queue.abandon(held.place)
            for other in self.held:
                if other.place.is_behind(held.place):
                    other.place = other.place.moved_up(held.place.span)

    def receive(self, held: HeldRequest) -> None:
        """Let a request wait here that has been taken from another backend's queue."""
        place = self.queue.enter(held.place.team, held.assignment.uncached_tokens)
        held.place = place
        self.held = dict.fromkeys(sorted((*self.held, held), key=lambda each: each.since))

    def set_next(self, held: HeldRequest, *, how: str) -> None:
        """Send this request next, unless it has gone meanwhile."""
        if held in self.held:
            self._next = held, how

    def eligible(self) -> list[HeldRequest]:
        """Return the requests that may be sent next, the most urgent one first.

        Of a conversation only the first one may.
        """
        first: dict[str, HeldRequest] = {}
        for held in self.held:
            if name := held.assignment.request.conversation:
                first.setdefault(name, held)
        return sorted(
            (
                held
                for held in self.held
                if first.get(held.assignment.request.conversation, held) is held
            ),
            key=lambda held: held.place,
        )

    def release(self, now: float) -> None:
        """Send the next request if the backend has room, and have another one chosen."""
        if self._next is not None and self.has_room(now):
            self.let_go(self._next[0], now, how=self._next[1])
        if self.held and self._next is None and self._planning is None and self.has_room(now):
            self._planning = asyncio.create_task(self._plan(self))
            self._planning.add_done_callback(self._planned)

    def release_expired(self, now: float, *, max_wait_s: float) -> None:
        """Send those who have waited for too long, as far as `max_concurrency` allows it."""
        for held in list(self.held):
            if held.since + max_wait_s > now or not self.backend.has_room:
                return
            self.let_go(held, now, how="max_wait")

    def let_go(self, held: HeldRequest, now: float, *, how: str) -> None:
        """Send a request that waits."""
        if self._remove(held):
            self.queue.leave(held.place)
        held.assignment.release = how
        self.send(held.assignment, now)
        if not held.released.done():
            held.released.set_result(held.assignment)

    def next_update(self, now: float, *, max_wait_s: float) -> float:
        """Return when to look again without any event; infinite: never."""
        if not self.held or not self.backend.has_room:
            return math.inf
        return min(next(iter(self.held)).since + max_wait_s, self.pace.next_expiry(now))

    def better_off(self, other: "Lane", now: float) -> HeldRequest | None:
        """Return the most urgent request that another backend would have computed sooner."""
        ahead = self.pace.outstanding_tokens(now)
        own_s, other_s = self.pace.token_s, other.pace.token_s
        ratio = other_s / own_s if own_s and other_s else 1.0
        for held in self.eligible():
            request = held.assignment.request
            cached = request.cached_by_backend.get(other.backend.name, 0)
            if (request.prompt_tokens - cached) * ratio < ahead + held.place.tokens:
                return held
            ahead += held.place.tokens
        return None

    def close(self) -> None:
        """Cancel planning, and send everybody."""
        if self._planning is not None:
            self._planning.cancel()
        for held in list(self.held):
            self.let_go(held, held.released.get_loop().time(), how="max_wait")

    def _remove(self, held: HeldRequest) -> bool:
        if held not in self.held:
            return False
        del self.held[held]
        if self._next is not None and self._next[0] is held:
            self._next = None
        return True

    def _planned(self, task: "asyncio.Task[None]") -> None:
        self._planning = None
        if task.cancelled():
            return
        if (error := task.exception()) is not None:  # a bug: raise it in every waiting caller
            for held in list(self.held):
                self.take(held)
                if not held.released.done():
                    held.released.set_exception(error)
            return
        self._update()
