"""Admit requests: estimate what routing must know, wait for a place, and give it back in the end.

Joins bodies with the router and the waiting room. Does not rewrite or send requests.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Self

from ragboost.booster.tenants import Tenant, Tenants
from ragboost.config import Settings
from ragboost.errors import BackendError
from ragboost.formats.ragboost_object import FIELD
from ragboost.proxy.routing.adaptive_room import AdaptiveRoom
from ragboost.proxy.routing.affinity import MessagePrefix, prefixes_of
from ragboost.proxy.routing.assignment import Assignment, RoutingRequest
from ragboost.proxy.routing.router import Router
from ragboost.proxy.routing.waiting_room import WaitingRoom
from ragboost.proxy.upstream.backends import Backend, Backends
from ragboost.proxy.upstream.client import BackendRefusedError
from ragboost.rewriting.message_chain import Link
from ragboost.rewriting.parsed_request import ParsedRequest
from ragboost.types import Request


class Dispatcher:
    """Assign requests to backends, and hold them back until they may be sent.

    With a single backend, bodies are examined only while requests wait.
    """

    def __init__(self, settings: Settings, *, backends: Backends, tenants: Tenants) -> None:
        self.backends = backends
        self._tenants = tenants
        self.router = Router(backends, settings.router)
        self.room: AdaptiveRoom | WaitingRoom | None = None
        room = settings.waiting_room
        if room.mode == "adaptive":
            self.room = AdaptiveRoom(self.router, backends, room)
        elif room.mode == "window" or any(b.max_concurrency for b in backends.all):
            self.room = WaitingRoom(self.router.assign, backends, room)
        self._is_planning = room.mode != "off"
        backends.on_down.append(lambda backend: tenants.forget(backend.name))

    @property
    def num_waiting(self) -> int:
        """Requests in the waiting room."""
        return len(self.room) if self.room is not None else 0

    def close(self) -> None:
        """Stop admitting: the event loop ends."""
        if self.room is not None:
            self.room.close()

    def admission(self) -> "Admission":
        """Return a new Admission for one request."""
        return Admission(self)

    def assign(self, request: RoutingRequest) -> Assignment:
        """Assign a request to the backend with the least load, without waiting; it is started."""
        backend = self.router.choose(request.prompt_tokens, cached_tokens={})
        assert backend is not None, "there are no backends"
        assignment = Assignment(request, backend)
        assignment.start()
        return assignment

    async def enter(self, request: RoutingRequest) -> Assignment:
        """Wait until a request may be sent, and return its assignment, which is started.

        Raises:
            TooManyWaitingError: the queue is full.
        """
        if self.room is not None:
            return await self.room.enter(request)
        if not self.router.looks_at_caches:
            return self.assign(request)
        assignment = (await self.router.assign([request]))[0]
        assignment.start()
        return assignment

    @property
    def hold_limits(self) -> Mapping[str, float]:
        """By name of the backend: tokens being computed there from which requests are held.

        Infinite while they never are; empty unless the waiting room is adaptive.
        """
        room = self.room
        if not isinstance(room, AdaptiveRoom):
            return {}
        return {backend.name: pace.limit_tokens for backend, pace in room.paces.items()}

    def begun(self, assignment: Assignment, *, is_stream: bool) -> None:
        """Note that a response has begun; the first byte of a stream comes when it is computed."""
        if isinstance(self.room, AdaptiveRoom):
            self.room.begun(assignment, is_stream=is_stream)
        assignment.prefill_done()
        self.update()

    def update(self) -> None:
        """Look for requests that may be sent: a response has begun, or a request has ended."""
        if self.room is not None:
            self.room.update()

    def fail_over(
        self, assignment: Assignment, tried: Sequence[Backend], error: BackendError
    ) -> bool:
        """Move a request that failed before its response to a backend that was not tried.

        Returns:
            False if there is none, or if its backend may have begun to compute it.
        """
        self.backends.note_failure(assignment.backend, error)
        if not isinstance(error, BackendRefusedError):
            return False
        prompt_tokens = assignment.request.prompt_tokens
        backend = self.router.choose(prompt_tokens, cached_tokens={}, exclude=tried)
        if backend is None:
            return False
        assignment.move(backend)
        return True

    def describe(
        self,
        request: ParsedRequest,
        *,
        tenant: Tenant | None,
        plan: Callable[[], Request | None] | None,
        history: Link,
    ) -> RoutingRequest:
        """Estimate what routing uses of a request; arguments as of `Admission.take`.

        An adaptive room looks for the documents when it needs them.

        Raises:
            RequestError: the `ragboost` object is malformed.
        """
        num_bytes = len(request.body.raw)
        if not (self.router.looks_at_caches or self._is_planning):
            return self.describe_unparsed(num_bytes, model=request.tenant_key.model)
        prefixes = self._prefixes(request) if self.router.looks_at_caches else ()
        ratio = self._tenants.tokens_per_byte(request.tenant_key.model)
        is_lazy = isinstance(self.room, AdaptiveRoom)
        return RoutingRequest(
            tenant=tenant,
            leading=None if is_lazy or plan is None else plan(),
            plan=plan if is_lazy else None,
            prefixes=prefixes,
            history=history,
            prompt_tokens=int(self._sent_bytes(num_bytes, prefixes, history) * ratio),
            tokens_per_byte=ratio,
            conversation=request.session or "",
            is_stream=request.body.fields.get("stream") is True,
        )

    def describe_unparsed(self, num_bytes: int, *, model: str = "") -> RoutingRequest:
        """Estimate the length of a request, and nothing else of it."""
        ratio = self._tenants.tokens_per_byte(model)
        return RoutingRequest(prompt_tokens=int(num_bytes * ratio), tokens_per_byte=ratio)

    def _prefixes(self, request: ParsedRequest) -> tuple[MessagePrefix, ...]:
        """Return the message prefixes that identify what a backend was or will be sent.

        Documents given beside the messages are rendered into the last one, which without a session
        says nothing about them: another request may ask the same with other documents.
        """
        body = request.body
        parts = (*request.tenant_key, request.session or "")
        seed = b"%b %b" % (repr(parts).encode(), body.field_bytes("documents"))
        prefixes = prefixes_of(body, seed=seed)
        is_unique = request.session is not None or FIELD not in body.fields
        return prefixes if is_unique else prefixes[:-1]

    def _sent_bytes(
        self, num_bytes: int, prefixes: tuple[MessagePrefix, ...], history: Link
    ) -> int:
        """Estimate a prompt's bytes, including what earlier turns added to the client's text."""
        added = known = 0
        for backend in self.backends.all:
            sent, given = self.router.prefixes.longest(backend.name, prefixes)
            added = max(added, sent - given)
            known = max(known, self.router.prefixes.num_bytes(backend.name, history))
        return max(num_bytes + added, known)


class Admission:
    """One request's place in a backend's queue, from its assignment to the end of its response.

    Made by `Dispatcher.admission`, for a `with` block. Call one of the `take` methods first.
    """

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self._assignment: Assignment | None = None
        self._tried: list[Backend] = []
        self.waited_s = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def assignment(self) -> Assignment:
        """The request's assignment."""
        assert self._assignment is not None, "the request is not assigned yet"
        return self._assignment

    @property
    def backend(self) -> Backend:
        """The backend that the request is assigned to."""
        return self.assignment.backend

    @property
    def cached_tokens(self) -> int:
        """Tokens expected in the backend's prefix cache."""
        return self.assignment.cached_tokens

    @property
    def notes(self) -> dict[str, str | int | float | None]:
        """Facts for the access log and the span."""
        if self._assignment is None:
            return {}
        return {
            "backend": self.backend.name,
            "queue_ms": round(self.waited_s * 1000, 3),
            "release": self.assignment.release,
            "cached_tokens_predicted": self.cached_tokens,
            "failovers": len(self._tried),
        }

    async def take(
        self,
        request: ParsedRequest,
        *,
        tenant: Tenant | None = None,
        plan: Callable[[], Request | None] | None = None,
        history: Link = b"",
    ) -> Assignment:
        """Wait until a completion may be sent, and return its assignment.

        Args:
            request: the completion.
            tenant: whose context indexes will be used; None: nothing will be boosted.
            plan: returns the documents that can be planned with others; called if needed.
            history: hash of what the engine was sent for its history; empty if unknown.

        Raises:
            TooManyWaitingError: the queue is full.
            RequestError: the `ragboost` object is malformed.
        """
        routing = self._dispatcher.describe(request, tenant=tenant, plan=plan, history=history)
        return await self._enter(routing)

    async def take_unparsed(self, num_bytes: int) -> Assignment:
        """As `take`, for a body of which nothing but the length is known."""
        return await self._enter(self._dispatcher.describe_unparsed(num_bytes))

    def take_any(self) -> Assignment:
        """Assign the request to any backend, without waiting."""
        self._assignment = self._dispatcher.assign(RoutingRequest())
        return self._assignment

    def fail_over(self, error: BackendError) -> bool:
        """Move to a backend that was not tried; see `Dispatcher.fail_over`."""
        self._tried.append(self.backend)
        return self._dispatcher.fail_over(self.assignment, self._tried, error)

    def rewritten(self, *, num_bytes: int, cached_tokens: int, history: Link = b"") -> None:
        """Note what the request was rewritten to, which is the history of the next one.

        Args:
            num_bytes: of the body to send.
            cached_tokens: tokens that the context index expects in the backend's prefix cache.
            history: hash of the rewritten history, if it has no session; or empty.
        """
        assignment, router = self.assignment, self._dispatcher.router
        assignment.cached_tokens = max(assignment.cached_tokens, cached_tokens)
        if router.looks_at_caches:
            name, prefixes = assignment.backend.name, assignment.request.prefixes
            router.prefixes.remember(name, prefixes, num_bytes=num_bytes)
            if history:
                whole = (MessagePrefix(history, num_bytes),)
                router.prefixes.remember(name, whole, num_bytes=num_bytes)

    def prefill_done(self, *, is_stream: bool = False) -> None:
        """Note that the response has begun; see `Dispatcher.begun`."""
        self._dispatcher.backends.note_answer(self.backend)
        self._dispatcher.begun(self.assignment, is_stream=is_stream)

    def close(self) -> None:
        """Give the place back: the response has ended, or there will be none."""
        if self._assignment is not None:
            self._assignment.close()
            self._dispatcher.update()

    async def _enter(self, request: RoutingRequest) -> Assignment:
        started = time.perf_counter()
        self._assignment = await self._dispatcher.enter(request)
        self.waited_s = time.perf_counter() - started
        return self._assignment
