"""ASGI middleware that prepares requests for chunk reuse, inside an engine's API server.

For a request with `ragboost.chunks` it tokenises the prompt by the server's own route, finds the
chunks in its token ids and passes their positions on; the usage tells what was reused. Whatever
goes wrong, the request is served exactly, and counted with the reason. Knows ASGI and OpenAI's
routes. Does not know the engine: a subclass says what it offers and what its routes are named.
"""

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from prometheus_client import REGISTRY, CollectorRegistry

from ragboost.chunk_cache.core.options import (
    FIELD,
    ChunkPosition,
    ReuseDefaults,
    ReuseOptions,
    read_measure,
    read_options,
    read_positions,
    read_tenant,
)
from ragboost.chunk_cache.http.inner import (
    App,
    Message,
    Receive,
    Scope,
    Send,
    replay,
    with_body_length,
)
from ragboost.chunk_cache.http.metrics import ReuseMetrics
from ragboost.chunk_cache.http.replies import ReplyInbox
from ragboost.chunk_cache.http.spans import ChunkFinder
from ragboost.chunk_cache.http.usage import TokenOrigins, split_answer, split_body, split_event
from ragboost.errors import RequestError

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
_MAX_BODY_BYTES = 64 << 20
_MAX_EVENT_BYTES = 4 << 20
_REPLY_TIMEOUT_S = 1.0
_USAGE = re.compile(rb'"usage":\s*\{')
_LAST_USAGE = re.compile(rb'"choices":\s*\[\s*\]')
_MARK = f'"{FIELD}"'.encode()


class ExactError(Exception):
    """A request cannot reuse chunks and is served exactly; the text is the reason."""


class PlannedBody(NamedTuple):
    """A request as the engine gets it.

    Attributes:
        fields: the body.
        reply: number of the engine's report in the inbox.
    """

    fields: Mapping[str, Any]
    reply: int


class ReuseMiddleware(ABC):
    """Prepares requests for chunk reuse.

    Args:
        app: the rest of the server.
        registry: of the server's metrics.
    """

    def __init__(self, app: App, *, registry: CollectorRegistry = REGISTRY) -> None:
        self._app = app
        self._finder = ChunkFinder()
        self._metrics = ReuseMetrics(registry)
        self._inbox: ReplyInbox | None = None

    @abstractmethod
    def defaults(self, scope: Scope) -> ReuseDefaults:
        """Return the chunk reuse of requests that do not ask for it."""

    @abstractmethod
    async def prompt_ids(self, scope: Scope, fields: Mapping[str, Any]) -> Sequence[int] | None:
        """Return the token ids of the prompt of a request, or None if the server refuses it."""

    @abstractmethod
    async def text_ids(self, scope: Scope, text: str) -> Sequence[int] | None:
        """Return the token ids of a text without special tokens, or None if it failed."""

    @abstractmethod
    def planned(self, fields: Mapping[str, Any], plan: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the body with the plan, as the engine reads it.

        Raises:
            ExactError: the body cannot carry a plan.
        """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, or the life of the server."""
        if scope["type"] == "lifespan":
            await self._live(scope, receive, send)
            return
        path = scope.get("path", "") if scope["type"] == "http" else ""
        method = scope.get("method")
        if method == "GET" and path == "/chunk_reuse":
            await _respond(send, 200, self._describe(scope))
        elif method == "POST" and path in (CHAT, COMPLETIONS):
            await self._complete(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _live(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._app(scope, receive, send)
        finally:
            if self._inbox is not None:
                self._inbox.close()

    async def _complete(self, scope: Scope, receive: Receive, send: Send) -> None:
        body, is_whole = await _read(receive)
        receive = replay(body, receive) if is_whole else _resume(body, receive)
        fields = _decode(body) if is_whole and _MARK in body else None
        given = fields.get(FIELD) if fields is not None else None
        if fields is None or not isinstance(given, dict):
            await self._app(scope, receive, send)
            return
        try:
            plan = await self._plan(scope, fields, given)
        except RequestError as error:
            await _respond(send, error.status, _error(error))
            return
        except ExactError as reason:
            self._metrics.count_exact(str(reason))
            await self._app(scope, receive, send)
            return
        changed = msgspec.json.encode(plan.fields)
        response = _SplitResponse(send, self._inboxed(), plan.reply, metrics=self._metrics)
        try:
            await self._app(
                with_body_length(scope, len(changed)), replay(changed, receive), response.send
            )
        finally:
            await response.count()
            self._inboxed().forget(plan.reply)

    async def _plan(
        self, scope: Scope, fields: Mapping[str, Any], given: Mapping[str, Any]
    ) -> PlannedBody:
        is_chat = scope["path"] == CHAT
        defaults = self.defaults(scope)
        options, measure = read_options(given, defaults), read_measure(given)
        positions = read_positions(given, is_chat=is_chat)
        if defaults.refusal is not None:
            raise ExactError("refused")
        if not positions:
            raise ExactError("no_chunks")
        rest = {name: value for name, value in fields.items() if name != FIELD}
        prompt = rest.get("prompt")
        if not is_chat and isinstance(prompt, list):
            ids: Sequence[int] | None = _token_prompt(prompt)
            spans = [(start, stop) for _, start, stop in positions]
        else:
            texts = _chunk_texts(rest, positions)
            ids = await self.prompt_ids(scope, rest)
            if ids is None:
                raise ExactError("not_rendered")
            spans = await self._finder.find(
                ids, texts, tokenize=lambda text: self.text_ids(scope, text)
            )
        if ids is None or not spans:
            raise ExactError("not_found")
        reply = self._inboxed().expect()
        plan = self._plan_fields(options, spans, tenant=_tenant(given, rest), reply=reply)
        if measure:
            plan["measure"] = True
        try:
            return PlannedBody(self.planned(rest, plan), reply)
        except ExactError:
            self._inboxed().forget(reply)
            raise

    def _plan_fields(
        self,
        options: ReuseOptions | None,
        spans: Sequence[tuple[int, int]],
        *,
        tenant: str,
        reply: int,
    ) -> dict[str, Any]:
        plan: dict[str, Any] = {
            "version": 1,
            "chunks": spans,
            "reuse": options is not None,
            "reply_to": [self._inboxed().name, reply],
        }
        if options is not None:
            plan |= {"policy": options.policy, "ratio": options.ratio}
        if tenant:
            plan["tenant"] = tenant
        return plan

    def _inboxed(self) -> ReplyInbox:
        if self._inbox is None:  # the first request: only now is there an event loop
            self._inbox = ReplyInbox()
        return self._inbox

    def _describe(self, scope: Scope) -> Mapping[str, Any]:
        defaults = self.defaults(scope)
        return {
            "is_possible": defaults.refusal is None,
            "refusal": defaults.refusal,
            "default": "approx" if defaults.is_approx else "exact",
            "policy": defaults.options.policy,
            "ratio": defaults.options.ratio,
            "policies": list(defaults.policies),
        }


class _SplitResponse:
    """Sends a response with its usage split; other bytes are sent as they come."""

    def __init__(
        self, send: Send, inbox: ReplyInbox, number: int, *, metrics: ReuseMetrics
    ) -> None:
        self._send, self._inbox, self._number, self._metrics = send, inbox, number, metrics
        self._start: Message | None = None  # of a JSON response, held back for its length
        self._is_stream = False
        self._held = b""
        self._origins: TokenOrigins | None = None

    async def send(self, message: Message) -> None:
        """Take a message of the server."""
        if message["type"] == "http.response.start":
            kind = dict(message["headers"]).get(b"content-type", b"")
            self._is_stream = kind.startswith(b"text/event-stream")
            if kind.startswith(b"application/json") and message["status"] == 200:
                self._start = message
            else:
                await self._send(message)
        elif self._start is not None:
            await self._send_json(message, self._start)
        elif self._is_stream:
            await self._send_events(message)
        else:
            await self._send(message)

    async def count(self) -> None:
        """Count the request, if the engine has reported."""
        origins = self._origins or await self._inbox.take(self._number, timeout_s=0)
        if origins is not None:
            self._metrics.count(origins)

    async def _send_json(self, message: Message, start: Message) -> None:
        self._held += message.get("body", b"")
        if message.get("more_body"):
            return
        body, self._origins = split_body(self._held)
        if self._origins is None:  # not in the response itself
            self._origins = await self._inbox.take(self._number, timeout_s=_REPLY_TIMEOUT_S)
            if self._origins is not None:
                body = split_answer(body, self._origins)
        await self._send({**start, "headers": with_body_length(start, len(body))["headers"]})
        await self._send({**message, "body": body})

    async def _send_events(self, message: Message) -> None:
        data, is_last = self._held + message.get("body", b""), not message.get("more_body")
        end = data.rfind(b"\n\n") + 2
        if is_last or len(data) > _MAX_EVENT_BYTES:
            whole, self._held = data, b""
        else:
            whole, self._held = (data[:end], data[end:]) if end > 1 else (b"", data)
        if _USAGE.search(whole):
            whole = await self._split_events(whole)
        if whole or is_last:
            await self._send({**message, "body": whole})

    async def _split_events(self, events: bytes) -> bytes:
        if self._origins is None:
            # Only the last usage, which has no choices, can have the report: others do not wait.
            seconds = _REPLY_TIMEOUT_S if _LAST_USAGE.search(events) else 0
            self._origins = await self._inbox.take(self._number, timeout_s=seconds)
        if self._origins is None:
            return events
        return b"\n\n".join(split_event(one, self._origins) for one in events.split(b"\n\n"))


async def _read(receive: Receive) -> tuple[bytes, bool]:
    """Return the body, and whether it is complete and not larger than what is kept in memory."""
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return b"".join(parts), False
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if not message.get("more_body"):
            return b"".join(parts), True
        if size > _MAX_BODY_BYTES:
            return b"".join(parts), False


def _resume(body: bytes, then: Receive) -> Receive:
    """Return a `receive` that gives the beginning of a body and then the rest as it comes."""
    is_given = False

    async def receive() -> Message:
        nonlocal is_given
        if is_given:
            return await then()
        is_given = True
        return {"type": "http.request", "body": body, "more_body": True}

    return receive


def _decode(body: bytes) -> dict[str, Any] | None:
    try:
        fields = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return None  # the server says what is wrong with it
    return fields if isinstance(fields, dict) else None


def _tenant(given: Mapping[str, Any], fields: Mapping[str, Any]) -> str:
    """Return whose chunks a request shares: both names in a hash, or nothing without them."""
    names = [read_tenant(given), str(fields.get("cache_salt") or "")]
    return hashlib.sha256(msgspec.json.encode(names)).hexdigest() if any(names) else ""


def _token_prompt(prompt: list[Any]) -> list[int] | None:
    return prompt if all(type(token) is int for token in prompt) else None


def _chunk_texts(fields: Mapping[str, Any], positions: Sequence[ChunkPosition]) -> list[str]:
    """Return the texts of the chunks; those outside their message are left out."""
    texts = []
    for number, start, stop in positions:
        text = _text(fields, number)
        if stop <= len(text):
            texts.append(text[start:stop])
    return texts


def _text(fields: Mapping[str, Any], number: int) -> str:
    messages = fields.get("messages")
    if not isinstance(messages, list):
        prompt = fields.get("prompt")
        return prompt if isinstance(prompt, str) else ""
    message = messages[number] if number < len(messages) else None
    content = message.get("content") if isinstance(message, dict) else None
    if isinstance(content, str):
        return content
    parts = [part.get("text") for part in content or () if isinstance(part, dict)]
    texts = [part for part in parts if isinstance(part, str)]
    return "\n".join(texts) if len(texts) == len(content or ()) else ""


async def _respond(send: Send, status: int, fields: Any) -> None:
    body = msgspec.json.encode(fields)
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _error(error: RequestError) -> Mapping[str, Any]:
    return {
        "error": {
            "message": str(error),
            "type": "invalid_request_error",
            "param": error.param,
            "code": "invalid_value",
        }
    }
