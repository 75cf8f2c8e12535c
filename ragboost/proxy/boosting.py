"""Prepare a request for the backend: parse, find tenant and conversation, rewrite, encode.

The policy around `Rewriter`: what runs on the event loop, what is counted, and the proxy's rule to
fail open. Does not know how requests are sent.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, NamedTuple, TypeVar

from ragboost.config import Settings
from ragboost.engine_hooks.usage import Usage
from ragboost.errors import RequestError
from ragboost.formats.ragboost_object import FIELD, ragboost_fields
from ragboost.proxy.conversation import Conversation, Conversations
from ragboost.proxy.follower import Follower
from ragboost.proxy.following import SESSION_FIELD, Followed, Tag, front_of
from ragboost.proxy.headers import RawHeaders, get_header
from ragboost.proxy.metrics import Metrics
from ragboost.proxy.payload import MalformedBodyError, Payload
from ragboost.proxy.rewrite import Rewriter, Rewritten
from ragboost.proxy.sync import CacheSync
from ragboost.proxy.tenants import Tenant, TenantKey, Tenants, user_of
from ragboost.proxy.tickets import Ticket
from ragboost.types import Context, Request

logger = logging.getLogger(__name__)

SESSION_HEADER = b"x-ragboost-session"
# Larger bodies are rewritten in a worker thread: below this, handing over costs more than it frees.
_THREAD_BYTES = 256 * 1024

T = TypeVar("T")


class Draft(NamedTuple):
    """A request before it has a backend.

    Attributes:
        raw: the client's bytes.
        payload: the same, parsed; None if they are no JSON object.
        tenant: whose context indexes will be used; None: nothing will be boosted.
        front: finds the documents to plan with, as `Rewriter.front`.
        session: name of the conversation, unique within the tenant; None: it belongs to none.
    """

    raw: bytes
    payload: Payload | None = None
    tenant: Tenant | None = None
    front: Callable[[], Request | None] = lambda: None
    session: str | None = None


Place = Callable[[Draft], Awaitable[Ticket]]
"""Gives a request its backend when its turn has come; the ticket has been started."""


class Prepared(NamedTuple):
    """A request as the backend gets it.

    Attributes:
        ticket: where it goes.
        body: the bytes to send.
        model: that the caller asked for; empty if unknown.
        rewritten: what was done; None if the body was not understood.
        tenant: whose context index was used, or None.
        is_usage_added: the answer's usage event is ours, not the caller's.
        bypass: why nothing was boosted; None if something was.
        seconds: what it took, without waiting for its turn.
        followed: how the engine will call it; None if nothing was boosted.
    """

    ticket: Ticket
    body: bytes
    model: str = ""
    rewritten: Rewritten | None = None
    tenant: Tenant | None = None
    is_usage_added: bool = False
    bypass: str | None = None
    seconds: float = 0.0
    followed: Followed | None = None

    @property
    def added_tag(self) -> str | None:
        """The id for the engine's events that the proxy has added; None: none, or the caller's."""
        tag = self.followed.tag if self.followed else None
        return tag.name if tag is not None and tag.is_ours else None

    @property
    def context(self) -> Context | None:
        """What was boosted, or None."""
        return self.rewritten.context if self.rewritten else None

    @property
    def notes(self) -> dict[str, str | int | float | None]:
        """For the access log and the span."""
        rewritten = self.rewritten
        return {
            "documents": rewritten.num_documents if rewritten else 0,
            "documents_dropped": rewritten.num_dropped if rewritten else 0,
            "bypass": self.bypass,
            "overhead_ms": round(self.seconds * 1000, 3),
        }

    @property
    def predicted_cached_tokens(self) -> int:
        """What the context index expects in the backend's prefix cache."""
        return self.context.predicted_cached_tokens if self.context else 0


class Boosting:
    """Everything about boosting that outlives a request."""

    def __init__(
        self, settings: Settings, metrics: Metrics, *, tenants: Tenants, sync: CacheSync
    ) -> None:
        self._sync = sync
        self._settings = settings
        self._metrics = metrics
        self._rewriter = Rewriter(settings)
        self._logged: set[str] = set()
        self.tenants = tenants
        self.conversations = Conversations(
            max_sessions=settings.session.max_sessions,
            max_bytes=settings.session.max_bytes,
            ttl_s=settings.session.ttl_s,
        )

    async def prepare(self, raw: bytes, headers: RawHeaders, *, place: Place) -> Prepared:
        """Boost a body for the backend that it is given, or pass it on as it is.

        Raises:
            RequestError: the `ragboost` object is malformed.
        """
        started = time.perf_counter()
        is_large = len(raw) > _THREAD_BYTES
        try:
            payload = await _call(lambda: Payload.parse(raw), in_thread=is_large)
        except MalformedBodyError:
            ticket = await place(Draft(raw))
            return self._finish(Prepared(ticket, raw, bypass="malformed_body"), time.perf_counter())
        key = TenantKey.of(payload.body)
        session = _session_id(payload.body, headers)
        if session is None and FIELD not in payload.body and not payload.body.get("documents"):
            spent = time.perf_counter() - started
            ticket = await place(Draft(raw, payload))
            prepared = Prepared(ticket, raw, key.model, bypass="no_documents")
            return self._finish(prepared, time.perf_counter() - spent)
        tenant, user = self.tenants.get(key), user_of(headers)
        conversation = self._conversation(tenant, session, user)
        front = partial(self._rewriter.front, payload, conversation)
        spent = time.perf_counter() - started
        ticket = await place(Draft(raw, payload, tenant, front, session and f"{user}/{session}"))
        started = time.perf_counter() - spent
        tag = Tag.of(payload.body, headers)
        work = self._rewrite(payload, tenant, ticket, session=session, user=user, tag=tag)
        # A worker thread cannot be cancelled: the tenant stays locked until it is done, even if the
        # client leaves meanwhile.
        prepared = await (asyncio.shield(work) if is_large else work)
        return self._finish(prepared, started)

    async def report_usage(self, prepared: Prepared, usage: Usage) -> None:
        """Take in what the backend reported for a request."""
        self._metrics.count_usage(usage)
        followed, context, cached_tokens = prepared.followed, prepared.context, usage.cached_tokens
        if followed is None or prepared.tenant is None or context is None or cached_tokens is None:
            return
        name = prepared.ticket.backend.name
        if name != followed.follower.name:
            return  # it went to another backend in the end, of which nothing was predicted
        error = self._sync.fidelity.record(
            predicted=followed.predicted_tokens,
            reported=cached_tokens,
            prompt_tokens=usage.prompt_tokens,
        )
        self._metrics.observe_prediction(error, self._sync.fidelity.read())
        async with prepared.tenant.lock:
            prepared.tenant.booster(name).report_usage(
                context,
                prompt_tokens=usage.prompt_tokens,
                cached_tokens=min(max(cached_tokens, 0), usage.prompt_tokens),
            )

    def answered(self, prepared: Prepared, usage: Usage | None, *, is_computed: bool) -> None:
        """A request is over.

        Args:
            prepared: the request.
            usage: what the backend reported, or None.
            is_computed: the backend answered it.
        """
        followed, context = prepared.followed, prepared.context
        if followed is None or followed.front is None or context is None:
            return
        is_computed = is_computed and prepared.ticket.backend.name == followed.follower.name
        if context.recorded is not None and not is_computed:
            followed.follower.failed(followed.front, context.recorded)
            return
        tag, prompt_tokens = followed.tag, usage and usage.prompt_tokens
        followed.follower.answered(tag and tag.name, followed.front, prompt_tokens=prompt_tokens)

    async def _rewrite(
        self,
        payload: Payload,
        tenant: Tenant,
        ticket: Ticket,
        *,
        session: str | None,
        user: str,
        tag: Tag,
    ) -> Prepared:
        is_large = len(payload.raw) > _THREAD_BYTES
        follower = self._sync.followers[ticket.backend.name]
        async with tenant.lock:
            conversation = self._conversation(tenant, session, user)
            is_shadow = self._settings.proxy.shadow
            # What would have been sent is remembered apart from what is sent.
            tried = self._conversation(tenant, session, f"shadow/{user}") if is_shadow else None

            def work() -> tuple[Rewritten, bytes, bool]:
                booster = tenant.booster(ticket.backend.name)
                rewritten = self._rewriter.rewrite(
                    payload, booster, tried if is_shadow else conversation, planned=ticket.planned
                )
                if is_shadow:
                    if rewritten.context is not None:
                        original = tenant.original(ticket.backend.name)
                        self._metrics.count_shadow(rewritten.context, original)
                    rewritten = self._rewriter.rewrite(
                        payload, booster, conversation, is_plain=True
                    )._replace(bypass="shadow", context=None)
                body, is_usage_added = self._with_usage(rewritten)
                if follower.streams and tag.is_ours and rewritten.context is not None:
                    body = {**body, SESSION_FIELD: tag.name}
                return rewritten, payload.encode(body), is_usage_added

            rewritten, body, is_usage_added = await _call(work, in_thread=is_large)
            for used in (conversation, tried):
                if used is not None and used.sent:
                    self.conversations.put(used)
            return Prepared(
                ticket,
                body,
                tenant.key.model,
                rewritten,
                tenant,
                is_usage_added,
                rewritten.bypass,
                followed=_follow(follower, tenant, rewritten, tag=tag),
            )

    def _conversation(self, tenant: Tenant, session: str | None, user: str) -> Conversation | None:
        if session is None:
            return None
        model, salt = tenant.key
        return self.conversations.get(f"{user}/{len(model)}:{model}/{len(salt)}:{salt}/{session}")

    def _with_usage(self, rewritten: Rewritten) -> tuple[Mapping[str, Any], bool]:
        """Ask for the usage of a boosted stream where the caller did not."""
        body = rewritten.body
        options = body.get("stream_options") or {}
        if (
            rewritten.context is None
            or not self._settings.proxy.stream_usage
            or body.get("stream") is not True
            or not isinstance(options, dict)
            or options.get("include_usage")
        ):
            return body, False
        return {**body, "stream_options": {**options, "include_usage": True}}, True

    def _finish(self, prepared: Prepared, started: float) -> Prepared:
        seconds = time.perf_counter() - started
        self._metrics.observe_overhead("boost", seconds=seconds)
        if prepared.bypass is not None:
            self._metrics.count_bypass(prepared.bypass)
            self._log_once(prepared.bypass, prepared.rewritten)
        elif prepared.context is not None:
            self._metrics.count_context(prepared.context)
        return prepared._replace(seconds=seconds)

    def _log_once(self, reason: str, rewritten: Rewritten | None) -> None:
        error = rewritten.error if rewritten else None
        if error is None or reason in self._logged:
            return
        self._logged.add(reason)
        logger.warning("forwarding without boosting (%s, logged once): %s", reason, error)


def _follow(
    follower: Follower, tenant: Tenant, rewritten: Rewritten, *, tag: Tag
) -> Followed | None:
    """Note a boosted request as sent, if something was boosted."""
    context = rewritten.context
    if context is None:
        return None
    front = None
    if context.recorded is not None:
        front = front_of(
            context,
            tenant.key,
            bytes_before=rewritten.bytes_before,
            bytes_behind=rewritten.bytes_behind,
        )
        front = follower.sent(tag.name if follower.streams else None, front)
    predicted = follower.predict(front, context.predicted_cached_tokens)
    return Followed(follower, front, tag if follower.streams else None, predicted)


async def _call(work: Callable[[], T], *, in_thread: bool) -> T:
    return await asyncio.to_thread(work) if in_thread else work()


def _session_id(body: Mapping[str, Any], headers: RawHeaders) -> str | None:
    """The conversation that the caller names: in the body, else in the header."""
    named = ragboost_fields(body).get("session_id")
    header = get_header(headers, SESSION_HEADER)
    if named is None and header is not None and len(header) > 256:
        raise RequestError("x-ragboost-session has more than 256 characters", param="session_id")
    return named or header or None
