"""Admit requests: estimate what routing must know, wait for a place, give it back in the end."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from ragboost.booster.tenants import Tenant, Tenants
from ragboost.config import Settings
from ragboost.errors import BackendError, BackendRefusedError
from ragboost.proxy.records import SentRequest
from ragboost.proxy.routing.admission import (
    UNKNOWN_REQUEST,
    Admission,
    MessagePrefix,
    RoutingRequest,
)
from ragboost.proxy.routing.router import Router
from ragboost.proxy.routing.signals import prefixes_of
from ragboost.proxy.routing.waiting_room import WaitingRoom
from ragboost.proxy.upstream.backend import Backend
from ragboost.proxy.upstream.backends import Backends, NoBackendError
from ragboost.requests.parsed_request import ParsedRequest
from ragboost.types import Request


class Dispatcher:
    """Assign requests to backends, and hold them back until they may be sent.

    With a single backend and no adaptive waiting room, bodies are not examined.
    """

    def __init__(self, settings: Settings, *, backends: Backends, tenants: Tenants) -> None:
        self.backends = backends
        self._tenants = tenants
        self.router = Router(backends, settings.router)
        self.room: WaitingRoom | None = None
        room = settings.waiting_room
        limits = [settings.backend.max_concurrency, *(b.max_concurrency for b in backends.all)]
        if room.mode != "off" or any(limits):
            self.room = WaitingRoom(self.router, backends, room)
        self._has_priorities = bool(settings.proxy.priorities)
        self._examines_bodies = room.mode != "off" or self.router.looks_at_caches
        backends.on_down.append(lambda backend: tenants.forget(backend.name))
        backends.on_removed.append(lambda backend: tenants.remove(backend.name))

    @property
    def num_waiting(self) -> int:
        return len(self.room) if self.room is not None else 0

    @property
    def hold_limits(self) -> Mapping[str, float]:
        """By name of the backend, tokens being computed there from which requests are held."""
        paces = self.room.paces if self.room is not None else {}
        return {backend.name: pace.limit_tokens for backend, pace in paces.items()}

    def close(self) -> None:
        if self.room is not None:
            self.room.close()

    def admission(self, request: RoutingRequest = UNKNOWN_REQUEST) -> Admission:
        return Admission(self, request)

    def assign(self, admission: Admission) -> None:
        """Assign a request to the backend with the least load, without waiting; it is started."""
        backends = self.backends.all
        if len(backends) == 1:
            backend: Backend | None = backends[0]
        else:
            backend = self.router.choose(admission.request.prompt_tokens, cached_tokens={})
        if backend is None:
            raise NoBackendError
        admission.assign(backend)
        admission.start()

    async def admit(
        self,
        admission: Admission,
        request: ParsedRequest,
        *,
        tenant: Tenant | None = None,
        find_leading: Callable[[], Request | None] = lambda: None,
    ) -> None:
        """Wait until a completion may be sent; without a `tenant`, nothing will be boosted.

        `find_leading` finds the documents that may be planned.
        """
        routed = self._describe(request)
        if self._examines_bodies:
            routed = self._examine(request, routed)
            if tenant is not None:
                routed = replace(routed, tenant=tenant, find_leading=find_leading)
        admission.request = routed
        await self.enter(admission)

    def _describe(self, request: ParsedRequest) -> RoutingRequest:
        """Return what is known of a request without its messages."""
        priority = request.body.fields.get("priority") if self._has_priorities else None
        ratio = self._tenants.tokens_per_byte(request.tenant_key.model)
        return RoutingRequest(
            prompt_tokens=int(len(request.body.raw) * ratio),
            tokens_per_byte=ratio,
            priority=priority if isinstance(priority, int) else 0,
        )

    def _examine(self, request: ParsedRequest, routed: RoutingRequest) -> RoutingRequest:
        """Add what the messages say of the conversation, and of its length as it was sent."""
        prefixes: Sequence[MessagePrefix] = ()
        if self.router.looks_at_caches:
            prefixes = prefixes_of(request.links_behind or request.links, request.body.messages)
        num_bytes = self.router.sent_bytes(prefixes, len(request.body.raw))
        return replace(
            routed,
            prefixes=prefixes,
            prompt_tokens=int(num_bytes * routed.tokens_per_byte),
            conversation=request.session or "",
            is_stream=request.body.fields.get("stream") is True,
        )

    async def enter(self, admission: Admission) -> Admission:
        """Wait until a request may be sent; return its admission, which is started."""
        started = time.perf_counter()
        if self.room is not None:
            await self.room.enter(admission)
        elif self.router.looks_at_caches:
            await self.router.place(admission)
            admission.start()
        else:
            self.assign(admission)
        admission.waited_s = time.perf_counter() - started
        return admission

    def rewritten(self, admission: Admission, sent: SentRequest) -> None:
        """Note what a request was rewritten to, which is the history of the next one."""
        if sent.context is not None:
            admission.expect(sent.context.predicted_cached_tokens)
        if self.router.looks_at_caches:
            self.router.note_sent(admission, num_bytes=len(sent.body))

    def begun(self, admission: Admission, *, is_stream: bool) -> None:
        """Note that a response has begun; the first byte of a stream comes when it is computed."""
        admission.backend.num_failures = 0
        if self.room is not None:
            self.room.begun(admission, is_stream=is_stream)
        admission.count_computed()
        self.update()

    def update(self) -> None:
        if self.room is not None:
            self.room.update()

    def fail_over(self, admission: Admission, error: BackendError) -> bool:
        """Move a request that failed before its response to a backend that was not tried.

        False if there is none, or if its backend may have begun to compute it.
        """
        admission.tried.append(admission.backend)
        self.backends.note_failure(admission.backend, error)
        if not isinstance(error, BackendRefusedError):
            return False
        prompt_tokens, tried = admission.request.prompt_tokens, admission.tried
        backend = self.router.choose(prompt_tokens, cached_tokens={}, exclude=tried)
        if backend is None:
            return False
        admission.move(backend)
        return True
