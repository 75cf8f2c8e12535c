"""Admit requests: estimate what routing must know, wait for a place, give it back in the end."""

import time
from collections.abc import Mapping

from ragboost.booster.tenants import Tenant, Tenants
from ragboost.config import Settings
from ragboost.errors import BackendError, BackendRefusedError
from ragboost.formats.ragboost_object import FIELD
from ragboost.hosted.cache_marks import kept_s
from ragboost.proxy.routing.admission import Admission, MessagePrefix
from ragboost.proxy.routing.router import Router
from ragboost.proxy.routing.signals.prefix_affinity import prefixes_of
from ragboost.proxy.routing.waiting_room import WaitingRoom
from ragboost.proxy.upstream.backend import Backend
from ragboost.proxy.upstream.backends import Backends, NoBackendError
from ragboost.rewriting.json_body import Link
from ragboost.rewriting.parsed_request import ParsedRequest
from ragboost.rewriting.sent_history import Conversation


class Dispatcher:
    """Assign requests to backends, and hold them back until they may be sent.

    With a single backend and no adaptive waiting room, bodies are not examined.
    """

    def __init__(self, settings: Settings, *, backends: Backends, tenants: Tenants) -> None:
        self.backends = backends
        self._tenants = tenants
        self.router = Router(backends, settings.router, kept_s=kept_s(settings))
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

    def admission(self) -> Admission:
        return Admission(self)

    def assign(self, admission: Admission) -> None:
        """Assign a request to the backend with the least load, without waiting; it is started."""
        backends = self.backends.all
        if len(backends) == 1:
            backend: Backend | None = backends[0]
        else:
            backend = self.router.choose(admission.prompt_tokens, cached_tokens={})
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
        conversation: Conversation | None = None,
        history: Link = b"",
    ) -> None:
        """Wait until a completion may be sent; without a `tenant`, nothing will be boosted.

        `history` is the hash of what the engine was sent for the request's history; empty if
        unknown.
        """
        if tenant is not None:
            admission.parsed = request
        priority = request.body.fields.get("priority")
        if self._has_priorities and isinstance(priority, int):
            admission.priority = priority
        if not self._examines_bodies:
            num_bytes, model = len(request.body.raw), request.tenant_key.model
            await self.admit_unparsed(admission, num_bytes, model=model)
            return
        if self.router.looks_at_caches:
            admission.prefixes = self._prefixes(request)
            admission.is_prefix_whole = len(admission.prefixes) == len(request.body.messages)
        admission.history = history
        admission.tokens_per_byte = self._tenants.tokens_per_byte(request.tenant_key.model)
        num_bytes = self._sent_bytes(admission, len(request.body.raw))
        admission.prompt_tokens = int(num_bytes * admission.tokens_per_byte)
        if tenant is not None:
            admission.tenant, admission.sent = tenant, conversation
        admission.conversation = request.session or ""
        admission.is_stream = request.body.fields.get("stream") is True
        await self.enter(admission)

    async def admit_unparsed(
        self, admission: Admission, num_bytes: int, *, model: str = ""
    ) -> None:
        admission.tokens_per_byte = self._tenants.tokens_per_byte(model)
        admission.prompt_tokens = int(num_bytes * admission.tokens_per_byte)
        await self.enter(admission)

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

    def rewritten(
        self, admission: Admission, *, num_bytes: int, cached_tokens: int, history: Link = b""
    ) -> None:
        """Note what a request was rewritten to, which is the history of the next one.

        The cached tokens are those that the context index expects. The hash `history` is empty for
        a request with a session.
        """
        admission.cached_tokens = max(admission.cached_tokens, cached_tokens)
        if self.router.looks_at_caches:
            name, sent = admission.backend.name, self.router.prefixes
            whole = num_bytes if admission.is_prefix_whole else None
            sent.remember(name, admission.prefixes, num_bytes=whole)
            if history:
                sent.remember(name, (MessagePrefix(history, num_bytes),), num_bytes=num_bytes)

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
        prompt_tokens, tried = admission.prompt_tokens, admission.tried
        backend = self.router.choose(prompt_tokens, cached_tokens={}, exclude=tried)
        if backend is None:
            return False
        admission.move(backend)
        return True

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

    def _sent_bytes(self, admission: Admission, num_bytes: int) -> int:
        sent, original = self.router.prefixes.longest(admission.prefixes)
        resent = self.router.prefixes.num_bytes(admission.history)
        return max(num_bytes + max(0, sent - original), resent)
