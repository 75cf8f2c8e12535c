"""Prepare a request for the backend: parse, find tenant and conversation, rewrite, encode.

The policy around `Rewriter`: what runs on the event loop, what is counted, and the proxy's rule to
fail open. Does not know how requests are sent.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from ragboost.config import Settings
from ragboost.formats.ragboost_object import FIELD, ragboost_fields
from ragboost.proxy.conversation import Conversation, Conversations, Learned, Past
from ragboost.proxy.headers import RawHeaders
from ragboost.proxy.histories import Histories, Match, history_links
from ragboost.proxy.metrics import Metrics
from ragboost.proxy.payload import MalformedBodyError, Payload
from ragboost.proxy.rewrite import Detected, Rewriter, Rewritten
from ragboost.proxy.session_names import session_name
from ragboost.proxy.tenants import Tenant, TenantKey, Tenants, user_of
from ragboost.proxy.tool_results import share_tool_results
from ragboost.proxy.usage import Usage
from ragboost.types import Context

logger = logging.getLogger(__name__)

# Larger bodies are rewritten in a worker thread: below this, handing over costs more than it frees.
_THREAD_BYTES = 256 * 1024
_END_USER = ("user", "safety_identifier")

T = TypeVar("T")


class Prepared(NamedTuple):
    """A request as the backend gets it.

    Attributes:
        body: the bytes to send.
        model: that the caller asked for; empty if unknown.
        rewritten: what was done; None if the body was not understood.
        tenant: whose context index was used, or None.
        is_usage_added: the answer's usage event is ours, not the caller's.
        bypass: why nothing was boosted; None if something was.
        seconds: what it took.
        learned: what it adds to the `past` that the caller gave.
        match: the history of a request without a session id; None: it names one, or has none.
    """

    body: bytes
    model: str = ""
    rewritten: Rewritten | None = None
    tenant: Tenant | None = None
    is_usage_added: bool = False
    bypass: str | None = None
    seconds: float = 0.0
    learned: Learned = Learned()
    match: Match | None = None

    @property
    def context(self) -> Context | None:
        """What was boosted, or None."""
        return self.rewritten.context if self.rewritten else None


class _Job(NamedTuple):
    """A body to rewrite, with what its request says about it."""

    payload: Payload
    detected: Detected
    can_ask_usage: bool


class Boosting:
    """Everything about boosting that outlives a request."""

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self._settings = settings
        self._metrics = metrics
        self._rewriter = Rewriter(settings)
        self._logged: set[str] = set()
        self.tenants = Tenants(settings)
        self.conversations = Conversations(
            max_sessions=settings.session.max_sessions,
            max_bytes=settings.session.max_bytes,
            ttl_s=settings.session.ttl_s,
        )
        self.histories = Histories(
            max_sessions=settings.session.max_sessions,
            max_bytes=settings.session.max_bytes,
            ttl_s=settings.session.ttl_s,
        )

    async def prepare(
        self,
        raw: bytes,
        headers: RawHeaders,
        *,
        can_ask_usage: bool = True,
        past: Past | None = None,
    ) -> Prepared:
        """Boost a body, or pass it on as it is.

        Args:
            raw: the client's body.
            headers: the client's.
            can_ask_usage: the endpoint knows `stream_options.include_usage`.
            past: what the engine was sent for the history in `messages`, where the caller keeps it;
                None: the body or the headers name a conversation, or it is recognised.

        Raises:
            RequestError: the `ragboost` object is malformed.
        """
        started = time.perf_counter()
        is_large = len(raw) > _THREAD_BYTES
        try:
            payload, detected = await _call(lambda: self._parse(raw), in_thread=is_large)
        except MalformedBodyError:
            return self._finish(Prepared(raw, bypass="malformed_body"), started)
        key, user = TenantKey.of(payload.body), user_of(headers)
        match: Match | None = None
        session: str | None = None
        if past is None:
            session = session_name(payload.body, headers)
            match = await self._match(payload, key, user) if session is None else None
            past = match.past if match else None
        if session is None and self._is_plain(payload, detected, past):
            plain = Prepared(raw, key.model, bypass=detected.bypass, match=match)
            return self._finish(plain, started)
        tenant = self.tenants.get(key)
        job = _Job(payload, detected, can_ask_usage)
        work = self._rewrite(job, tenant, self._name(key, user, session), past)
        # A worker thread cannot be cancelled: the tenant stays locked until it is done, even if the
        # client leaves meanwhile.
        prepared = await (asyncio.shield(work) if is_large else work)
        if match is not None:
            apart = _documents_apart(payload)
            is_final = prepared.bypass is None
            digest = self.histories.add(match, prepared.learned, apart=apart, is_final=is_final)
            match = match._replace(digest=digest)
        return self._finish(prepared._replace(model=key.model, match=match), started)

    def report_answer(self, prepared: Prepared, answers: Sequence[Mapping[str, Any]]) -> None:
        """Take in the assistant's messages, each of them a way in which the history may go on."""
        if prepared.match is not None:
            self.histories.answered(prepared.match, answers)

    async def report_usage(self, prepared: Prepared, usage: Usage) -> None:
        """Take in what the backend reported for a request."""
        self._metrics.count_usage(usage)
        if prepared.tenant is None or prepared.context is None or usage.cached_tokens is None:
            return
        async with prepared.tenant.lock:
            prepared.tenant.booster.report_usage(
                prepared.context,
                prompt_tokens=usage.prompt_tokens,
                cached_tokens=min(max(usage.cached_tokens, 0), usage.prompt_tokens),
            )

    def _parse(self, raw: bytes) -> tuple[Payload, Detected]:
        payload = Payload.parse(raw)
        return payload, self._rewriter.detect(payload)

    async def _match(self, payload: Payload, key: TenantKey, user: str) -> Match | None:
        """Recognise the history of a request that names no conversation."""
        if not self._settings.session.stateless or not payload.messages:
            return None
        # An application's users may share its credentials: what tells them apart counts as well.
        parts = [user, *key, *(str(payload.body.get(name, "")) for name in _END_USER)]
        scope = "".join(f"{len(part)}:{part}" for part in parts).encode("utf-8", "surrogatepass")
        links = await _call(
            lambda: history_links(payload.body["messages"], payload.message_digests, scope=scope),
            in_thread=len(payload.raw) > _THREAD_BYTES,
        )
        return self.histories.match(links, apart=_documents_apart(payload))

    def _is_plain(self, payload: Payload, detected: Detected, past: Past | None) -> bool:
        """Tell whether there is nothing to do."""
        has_documents = (
            FIELD in payload.body or detected.found is not None or detected.error is not None
        )
        return not (has_documents or self._settings.dedup.passages or (past and past.sent))

    async def _rewrite(
        self, job: _Job, tenant: Tenant, name: str | None, past: Past | None
    ) -> Prepared:
        payload = job.payload
        async with tenant.lock:
            conversation: Conversation | None = None
            if past is not None:
                conversation = Conversation.after(past)
            elif name is not None:
                conversation = self.conversations.get(name)

            def work() -> Prepared:
                rewritten = self._rewriter.rewrite(
                    payload, tenant.booster, conversation, detected=job.detected
                )
                if self._settings.dedup.passages:
                    rewritten = self._share_passages(rewritten)
                body, is_usage_added = rewritten.body, False
                if job.can_ask_usage:
                    body, is_usage_added = self._with_usage(rewritten)
                learned = conversation.learned(past) if conversation and past else Learned()
                return Prepared(
                    payload.encode(body),
                    rewritten=rewritten,
                    tenant=tenant,
                    is_usage_added=is_usage_added,
                    bypass=rewritten.bypass,
                    learned=learned,
                )

            prepared = await _call(work, in_thread=len(payload.raw) > _THREAD_BYTES)
            if conversation is not None and past is None and conversation.sent:
                self.conversations.put(conversation)
            return prepared

    @staticmethod
    def _name(key: TenantKey, user: str, session: str | None) -> str | None:
        if session is None:
            return None
        return (
            f"{user}/{len(key.model)}:{key.model}/{len(key.cache_salt)}:{key.cache_salt}/{session}"
        )

    def _share_passages(self, rewritten: Rewritten) -> Rewritten:
        messages = rewritten.body.get("messages")
        if not isinstance(messages, list):
            return rewritten
        shared = share_tool_results(messages, settings=self._settings.dedup)
        if not shared.saved_bytes:
            return rewritten
        self._metrics.count_passages(shared.saved_bytes)
        return rewritten._replace(body={**rewritten.body, "messages": shared.messages})

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


async def _call(work: Callable[[], T], *, in_thread: bool) -> T:
    return await asyncio.to_thread(work) if in_thread else work()


def _documents_apart(payload: Payload) -> bytes:
    """The documents that are given beside the messages and rendered into them."""
    return payload.field(FIELD) if ragboost_fields(payload.body).get("documents") else b""
