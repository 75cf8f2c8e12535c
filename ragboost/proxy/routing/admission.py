"""From a parsed request to a ticket: what the scheduler is to know of it, and its turn.

Joins bodies with router and waiting room. Does not rewrite and does not send.
"""

import time
from collections.abc import Sequence
from typing import Self

from ragboost.config import Settings
from ragboost.errors import BackendError
from ragboost.formats.ragboost_object import FIELD
from ragboost.proxy.requests import ParsedRequest
from ragboost.proxy.routing.affinity import MessagePrefix, prefixes_of
from ragboost.proxy.routing.assignment import Assignment, RoutingRequest
from ragboost.proxy.routing.router import Router
from ragboost.proxy.routing.waiting_room import WaitingRoom
from ragboost.proxy.upstream.backends import Backend, Backends
from ragboost.proxy.upstream.client import BackendRefusedError
from ragboost.rewriting.conversations import Link
from ragboost.rewriting.tenants import TenantKey, Tenants

_BYTES_PER_TOKEN = 4


class Dispatcher:
    """Gives each request a backend and its turn.

    A single backend without a waiting room and without a limit costs nothing: bodies are not looked
    at then.
    """

    def __init__(self, settings: Settings, *, backends: Backends, tenants: Tenants) -> None:
        self.backends = backends
        self.router = Router(backends, settings.router)
        self.room: WaitingRoom | None = None
        if settings.waiting_room.enabled or any(b.max_concurrency for b in backends.all):
            self.room = WaitingRoom(self.router.assign, backends, settings.waiting_room)
        self._is_planning = settings.waiting_room.enabled
        backends.on_down.append(lambda backend: tenants.forget(backend.name))

    @property
    def num_waiting(self) -> int:
        """Requests in the waiting room."""
        return len(self.room) if self.room is not None else 0

    def close(self) -> None:
        """The event loop ends."""
        if self.room is not None:
            self.room.close()

    def turn(self) -> "Admission":
        """One request's way through: `take` a ticket, and give it back in the end."""
        return Admission(self)

    def pass_through(self) -> Assignment:
        """A ticket for a request of which nothing is known: any backend, at once."""
        return self._ticket(RoutingRequest())

    async def admit(self, draft: ParsedRequest) -> Assignment:
        """Wait for the turn of a completion; its ticket has been started.

        Raises:
            TooManyWaitingError: the queue is full.
            RequestError: the `ragboost` object is malformed.
        """
        return await self.enter(self._job(draft))

    async def enter(self, job: RoutingRequest) -> Assignment:
        """As `admit`, for a request of which everything is known."""
        if self.room is not None:
            return await self.room.enter(job)
        if not self.router.looks_at_caches:
            return self._ticket(job)
        ticket = (await self.router.assign([job]))[0]
        ticket.start()
        return ticket

    def update(self) -> None:
        """A backend began to answer, or is done."""
        if self.room is not None:
            self.room.update()

    def fail_over(self, ticket: Assignment, tried: Sequence[Backend], error: BackendError) -> bool:
        """Take in that a request failed before its answer began, and move it to a backend that was
        not tried; False: there is none, or its backend may have begun to work."""
        self.backends.note_failure(ticket.backend, error)
        if not isinstance(error, BackendRefusedError):
            return False
        backend = self.router.choose(ticket.job.prompt_tokens, cached_tokens={}, exclude=tried)
        if backend is None:
            return False
        ticket.move(backend)
        return True

    def _ticket(self, job: RoutingRequest) -> Assignment:
        backend = self.router.choose(job.prompt_tokens, cached_tokens={})
        assert backend is not None, "there are no backends"
        ticket = Assignment(job, backend)
        ticket.start()
        return ticket

    def _job(self, draft: ParsedRequest) -> RoutingRequest:
        if draft.payload is None or not (self.router.looks_at_caches or self._is_planning):
            return RoutingRequest(prompt_tokens=len(draft.raw) // _BYTES_PER_TOKEN)
        prefixes = self._prefixes(draft) if self.router.looks_at_caches else ()
        return RoutingRequest(
            tenant=draft.tenant,
            front=draft.front(),
            prefixes=prefixes,
            history=draft.history,
            prompt_tokens=self._prompt_tokens(draft, prefixes),
        )

    def _prefixes(self, draft: ParsedRequest) -> tuple[MessagePrefix, ...]:
        """The message prefixes that stand for what a backend was or will be sent.

        Documents that are given beside the messages are put into the last one, so that without a
        session this says nothing about it: another request may ask the same with other documents.
        """
        payload = draft.payload
        assert payload is not None
        above = payload.field("documents")
        parts = (*TenantKey.of(payload.body), draft.session or "")
        seed = b"%b %b" % (repr(parts).encode(), above)
        prefixes = prefixes_of(payload.messages, seed=seed, bytes_per_token=_BYTES_PER_TOKEN)
        is_told_apart = draft.session is not None or FIELD not in payload.body
        return prefixes if is_told_apart else prefixes[:-1]

    def _prompt_tokens(self, draft: ParsedRequest, prefixes: tuple[MessagePrefix, ...]) -> int:
        """The body's length, with what an earlier turn was sent beyond what the client resends."""
        added = history = 0
        for backend in self.backends.all:
            sent, given = self.router.prefixes.longest(backend.name, prefixes)
            added = max(added, sent - given)
            history = max(history, self.router.prefixes.tokens(backend.name, draft.history))
        return max(len(draft.raw) // _BYTES_PER_TOKEN + added, history)


class Admission:
    """One request's way through, from its ticket to the end of its answer.

    Made by `Dispatcher.turn`, for a `with` block. Everything but `take` and `take_any` needs a
    ticket.
    """

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self._ticket: Assignment | None = None
        self._tried: list[Backend] = []
        self.waited_s = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def ticket(self) -> Assignment:
        """The ticket that was taken."""
        assert self._ticket is not None, "no ticket has been taken"
        return self._ticket

    @property
    def backend(self) -> Backend:
        """Where the request goes."""
        return self.ticket.backend

    @property
    def notes(self) -> dict[str, str | int | float | None]:
        """For the access log and the span."""
        if self._ticket is None:
            return {}
        return {
            "backend": self.backend.name,
            "queue_ms": round(self.waited_s * 1000, 3),
            "cached_tokens_predicted": self.ticket.cached_tokens,
            "failovers": len(self._tried),
        }

    async def take(self, draft: ParsedRequest) -> Assignment:
        """Wait for the turn of a completion, as `Dispatcher.admit`."""
        started = time.perf_counter()
        self._ticket = await self._dispatcher.admit(draft)
        self.waited_s = time.perf_counter() - started
        return self._ticket

    def take_any(self) -> Assignment:
        """Go to any backend, at once."""
        self._ticket = self._dispatcher.pass_through()
        return self._ticket

    def fail_over(self, error: BackendError) -> bool:
        """As `Dispatcher.fail_over`, with the backends tried so far."""
        self._tried.append(self.backend)
        return self._dispatcher.fail_over(self.ticket, self._tried, error)

    def prepared(self, *, num_bytes: int, cached_tokens: int, history: Link = b"") -> None:
        """The request was rewritten to this many bytes: the history of its conversation's next.

        Args:
            num_bytes: of the body to send.
            cached_tokens: what the context index expects its backend to hold.
            history: hash of the rewritten history, where it is not known by a session; or empty.
        """
        ticket, router = self.ticket, self._dispatcher.router
        ticket.cached_tokens = max(ticket.cached_tokens, cached_tokens)
        if router.looks_at_caches:
            tokens = num_bytes // _BYTES_PER_TOKEN
            router.prefixes.remember(ticket.backend.name, ticket.job.prefixes, num_tokens=tokens)
            if history:
                known = (MessagePrefix(history, tokens),)
                router.prefixes.remember(ticket.backend.name, known, num_tokens=tokens)

    def answered(self) -> None:
        """The backend began to answer."""
        self._dispatcher.backends.note_answer(self.backend)
        self.ticket.answered()
        self._dispatcher.update()

    def close(self) -> None:
        """The answer is over, or there will be none."""
        if self._ticket is not None:
            self._ticket.close()
            self._dispatcher.update()
