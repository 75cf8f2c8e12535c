"""ASGI middleware that prepares requests for chunk reuse, inside an engine's API server. It
tokenises the prompt by the server's own route, finds the chunks in its ids and passes their
positions on; whatever goes wrong, the request is served exactly, and counted with the reason. Does
not know the engine: a subclass says what it offers and how its routes are named."""

import hashlib
import logging
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import zip_longest
from typing import Any, NamedTuple

import msgspec
from prometheus_client import REGISTRY, CollectorRegistry

from ragboost.chunk_cache.core.request import (
    FIELD,
    PARAMS_KEY,
    VERSION,
    ChunkFields,
    ChunkPosition,
    ReuseDefaults,
    ReuseFields,
    read_public,
)
from ragboost.chunk_cache.core.settings import EngineChunkSettings
from ragboost.chunk_cache.fields import read_fields
from ragboost.chunk_cache.http.announcements import Announcer
from ragboost.chunk_cache.http.answer_scores import CHECK, Scorer, answer_check
from ragboost.chunk_cache.http.asgi import (
    MAX_BODY_BYTES,
    App,
    Receive,
    RequestBody,
    Scope,
    Send,
    call_route,
    check_key,
    read_body,
    read_json,
    refuse,
    replay,
    respond,
    with_body_length,
)
from ragboost.chunk_cache.http.metrics import ReuseMetrics
from ragboost.chunk_cache.http.reports import STARTING, ReportInbox, read_status
from ragboost.chunk_cache.http.spans import ChunkFinder, chunk_texts
from ragboost.chunk_cache.http.store_commands import MAX_KEYS, StoreCommand, read_store_options
from ragboost.chunk_cache.http.usage import UsageWriter
from ragboost.chunk_cache.store.keys import PUBLIC
from ragboost.chunk_cache.store.load_table import MAX_WAIT_S
from ragboost.errors import ConfigError, RequestError
from ragboost.util.jsonl import json_value

logger = logging.getLogger(__name__)

STORE, METRICS = "/chunk_store", "/metrics"
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
# Last parts of paths of vLLM and SGLang whose bodies may have parameters of the engine.
PROMPT_ROUTES = re.compile(
    "/(batch|chat|completions|decisions|generat.*|invocations|messages|responses|system.*|vertex.*)/*$"
)
_LOAD_TIMEOUT_S = MAX_WAIT_S + 1.0  # the engine answers earlier
_COMMAND_TIMEOUT_S = 2.0
_MARK = f'"{FIELD}"'.encode()


class ExactError(Exception):
    """A request cannot reuse chunks and is served exactly; the text is the reason."""


class StartedEngine(NamedTuple):
    settings: EngineChunkSettings
    name: str  # under which it publishes whether it can reuse chunks
    num_inboxes: int = 1  # processes that take announcements of chunks
    takes_commands: bool = True  # one store holds all KV


class FoundChunks(NamedTuple):
    tokens: Sequence[int]  # of the prompt
    spans: Sequence[tuple[int, int] | None]  # of each chunk; None: it is not there

    @property
    def present(self) -> list[tuple[int, int]]:
        return [span for span in self.spans if span is not None]


class ReuseMiddleware(ABC):
    params_field: str  # of a body, in which the engine reads the plan
    scorer: Scorer
    loads_first = False  # requests wait here, not in the engine, until their chunks are in memory

    def __init__(self, app: App, *, registry: CollectorRegistry = REGISTRY) -> None:
        self._app = app
        self._finder = ChunkFinder()
        self._metrics = ReuseMetrics(registry)
        self._defaults: ReuseDefaults | None = None  # once the engine has checked itself
        self._inbox: ReportInbox | None = None
        self._announcer: Announcer | None = None  # once the engine can reuse chunks
        self._takes_commands = self._has_more_than_memory = False
        self._public_key = ""

    @abstractmethod
    def engine(self, scope: Scope) -> StartedEngine | str:
        """Return the engine of a server, or why it cannot reuse chunks."""

    @abstractmethod
    def prompt_body(self, fields: Mapping[str, Any], *, is_chat: bool) -> Mapping[str, Any]:
        """Return the body with which `/tokenize` returns the ids of a request's prompt."""

    @abstractmethod
    def planned(self, fields: Mapping[str, Any], plan: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the body with the plan, as the engine reads it; `ExactError`: it cannot carry one.
        Where the engine renders other ids than `/tokenize`, chunks are not found, and computed."""

    def namespace(self, fields: Mapping[str, Any]) -> list[str | None]:
        """Return what keeps a request apart in the engine's prefix cache."""
        salt = fields.get("cache_salt")
        return [salt if isinstance(salt, str) else None]

    def defaults(self, scope: Scope) -> ReuseDefaults:
        if self._defaults is not None:
            return self._defaults
        try:
            engine = self.engine(scope)
        except ConfigError as error:  # such as a calibration that is gone
            engine = str(error)
        if isinstance(engine, str):
            return ReuseDefaults(refusal=engine)
        settings = engine.settings
        defaults = settings.reuse_defaults(refusal=read_status(engine.name))
        if defaults.refusal != STARTING:
            self._defaults = defaults
            if defaults.refusal is None:
                self._announcer = Announcer(engine.name, num_inboxes=engine.num_inboxes)
                self._takes_commands = engine.takes_commands
                self._has_more_than_memory = settings.has_more_than_memory
                self._public_key = settings.public_key
        return defaults

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(scope, receive, send)
            return
        path = scope.get("path", "") if scope["type"] == "http" else ""
        method = scope.get("method")
        if method == "GET" and path == "/chunk_reuse":
            await respond(send, 200, self.defaults(scope).describe())
        elif method == "POST" and path == STORE:
            await self._command(scope, receive, send)
        elif method == "POST" and path == CHECK:
            tokenize = partial(self._tokenize_prompt, scope), partial(self._tokenize_text, scope)
            await answer_check(
                self._app, scope, receive, send, scorer=self.scorer, tokenize=tokenize
            )
        elif method == "POST" and PROMPT_ROUTES.search(path):
            await self._complete(scope, receive, send)
        else:
            if method == "GET" and path == METRICS and self.defaults(scope).refusal is None:
                self._metrics.set_store(await self._ask_store())
            await self._app(scope, receive, send)

    async def _live(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._app(scope, receive, send)
        finally:
            if self._inbox is not None:
                self._inbox.close()
            if self._announcer is not None:
                self._announcer.close()

    async def _complete(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await read_body(receive)
        # What is no JSON object, the server refuses.
        is_read, params = _may_name_us(body.data), self.params_field
        fields = read_json(body.data) if body.is_whole and is_read else None
        if fields is not None:
            if (own := _without_plan(fields, params)) is not None:
                fields, data = own, msgspec.json.encode(own)
                scope = with_body_length(scope, len(data))
                body = RequestBody(data, True, replay(data, body.receive))
        elif len(body.data) > MAX_BODY_BYTES or (is_read and _has_plan(body.data, params)):
            await refuse(send, RequestError("the body is too large, or no plain JSON"))
            return
        extension = fields.get(FIELD) if fields and scope["path"] in (CHAT, COMPLETIONS) else None
        if fields is None or not isinstance(extension, dict):
            await self._app(scope, body.receive, send)
            return
        inbox = self._open_inbox()
        ticket = inbox.expect()
        try:
            planned = await self._planned(scope, fields, extension, [inbox.name, ticket])
            if isinstance(planned, RequestError):
                await refuse(send, planned)
            elif planned is None:
                await self._app(scope, body.receive, send)
            else:
                receive, writer = (
                    replay(planned, body.receive),
                    UsageWriter(send, inbox, ticket),
                )
                try:
                    await self._app(with_body_length(scope, len(planned)), receive, writer.send)
                finally:
                    await self._count(writer)
        finally:
            inbox.forget(ticket)

    async def _count(self, writer: UsageWriter) -> None:
        await writer.wait(timeout_s=0)
        if writer.report is not None:
            self._metrics.count(writer.report)

    async def _planned(
        self,
        scope: Scope,
        fields: Mapping[str, Any],
        extension: Mapping[str, Any],
        reply_to: Sequence[Any],
    ) -> bytes | RequestError | None:
        rest = {name: value for name, value in fields.items() if name != FIELD}
        try:
            plan = await self._plan(scope, rest, extension)
            return msgspec.json.encode(self.planned(rest, {**plan, "reply_to": reply_to}))
        except RequestError as error:
            return error
        except ExactError as reason:
            self._metrics.count_exact(str(reason))
            return None

    async def _plan(
        self, scope: Scope, fields: Mapping[str, Any], extension: Mapping[str, Any]
    ) -> dict[str, Any]:
        is_chat = scope["path"] == CHAT
        defaults = self.defaults(scope)
        asked = read_fields(ReuseFields, extension, name=FIELD)
        options, positions = asked.options(defaults), asked.positions(is_chat=is_chat)
        tenant = _tenant(asked, fields)
        is_public = read_public(extension, self._public_key)
        if defaults.refusal is not None:
            raise ExactError("refused")
        if not positions:
            raise ExactError("no_chunks")
        if fields.get("use_beam_search"):  # vLLM's requests for the beams have no plan
            raise ExactError("beam_search")
        found = await self._find(scope, fields, positions)
        spans = found.present
        if not spans:
            raise ExactError("not_found")
        if options is not None and self.loads_first:
            await self._load(found, fields, tenant=tenant)
        exact = [span for span in found.spans[: asked.exact_chunks] if span is not None]
        plan: dict[str, Any] = {"version": VERSION, "chunks": spans, "reuse": options is not None}
        if options is not None:
            plan |= {"policy": options.policy, "ratio": options.ratio}
        if tenant:
            plan["tenant"] = tenant
        if asked.measure:
            plan["measure"] = True
        if is_public:
            plan["public"] = True
        if exact:
            plan["exact_chunks"] = len(exact)
        return plan

    async def _find(
        self, scope: Scope, fields: Mapping[str, Any], positions: Sequence[ChunkPosition]
    ) -> FoundChunks:
        is_chat, prompt = scope["path"] == CHAT, fields.get("prompt")
        if not is_chat and isinstance(prompt, list):
            is_ids = all(type(token) is int and 0 <= token < 1 << 63 for token in prompt)
            spans = [(start, stop) for _, start, stop in positions]
            return FoundChunks(prompt, spans if is_ids else [])
        ids = await self._tokenize_prompt(scope, fields)
        if ids is None:
            raise ExactError("not_rendered")
        texts, tokenize = chunk_texts(fields, positions), partial(self._tokenize_text, scope)
        return FoundChunks(ids, await self._finder.find(ids, texts, tokenize=tokenize))

    async def _load(self, found: FoundChunks, fields: Mapping[str, Any], *, tenant: str) -> None:
        """Let the engine load stored chunks; wait until it has, or computing them is faster."""
        announcer, inbox = self._announcer, self._open_inbox()
        if announcer is None or not self._has_more_than_memory:
            return
        chunks = [found.tokens[start:stop] for start, stop in found.present]
        names = self.namespace(fields)
        tickets = [inbox.expect() for _ in range(announcer.num_inboxes)]
        replies_to = [(inbox.name, ticket) for ticket in tickets]
        announcer.send(chunks, tenant=tenant, namespace=names, replies_to=replies_to)
        for ticket in tickets:
            await inbox.take(ticket, timeout_s=_LOAD_TIMEOUT_S)
            inbox.forget(ticket)

    async def _command(self, scope: Scope, receive: Receive, send: Send) -> None:
        """List, pin or evict stored chunks: named by keys, or by a prompt with chunks."""
        body = await read_body(receive)
        fields = read_json(body.data) if body.is_whole else None
        extension = (fields or {}).get(FIELD) or {}
        defaults = self.defaults(scope)
        try:
            await check_key(self._app, scope)
            if fields is None or not isinstance(extension, dict):
                raise RequestError("the body must be a JSON object")
            if defaults.refusal is None and not self._takes_commands:
                raise RequestError("the store of a model with several workers takes no commands")
            is_chat = "messages" in fields
            options = read_store_options(extension)
            is_public = read_public(extension, self._public_key)
            asked = read_fields(ChunkFields, extension, name=FIELD)
            tenant = PUBLIC if is_public else _tenant(asked, fields)
            positions = asked.positions(is_chat=is_chat)
            if len(positions) > MAX_KEYS:
                raise RequestError(f"a command takes {MAX_KEYS} chunks at most")
            found = FoundChunks((), ())
            if positions:
                path = CHAT if is_chat else COMPLETIONS
                found = await self._find({**scope, "path": path}, fields, positions)
        except RequestError as error:
            await refuse(send, error)
            return
        except ExactError as reason:
            await refuse(send, RequestError(f"the prompt cannot be read: {reason}"))
            return
        # The search may end early.
        spans = [span for _, span in zip_longest(positions, found.spans)]
        chunks = [[*found.tokens[slice(*span)]] if span else [] for span in spans]
        names = [] if is_public else self.namespace(fields)
        answer = await self._ask_store(options, chunks, tenant, names)
        await respond(send, 503 if answer is None else 200, answer or {"error": "no answer"})

    async def _ask_store(self, *command: Any) -> dict[str, Any] | None:
        announcer = self._announcer
        if announcer is None or not self._takes_commands:
            return None
        inbox = self._open_inbox()
        ticket = inbox.expect()
        try:
            announcer.command(StoreCommand((inbox.name, ticket), *command))
            return await inbox.take_fields(ticket, timeout_s=_COMMAND_TIMEOUT_S)
        finally:
            inbox.forget(ticket)

    def _open_inbox(self) -> ReportInbox:
        if self._inbox is None:  # the first request: only now is there an event loop
            self._inbox = ReportInbox()
        return self._inbox

    async def _tokenize_prompt(
        self, scope: Scope, fields: Mapping[str, Any]
    ) -> Sequence[int] | None:
        body = self.prompt_body(fields, is_chat="messages" in fields)
        return await self._tokenize(scope, body)

    async def _tokenize_text(self, scope: Scope, text: str) -> Sequence[int] | None:
        return await self._tokenize(scope, {"prompt": text, "add_special_tokens": False})

    async def _tokenize(self, scope: Scope, body: Mapping[str, Any]) -> Sequence[int] | None:
        answer = await call_route(self._app, scope, "/tokenize", body)
        ids = None if answer is None else answer.get("tokens")
        is_ids = isinstance(ids, list) and ids and isinstance(ids[0], int)
        return ids if is_ids else None


def _without_plan(fields: dict[str, Any], params_field: str) -> dict[str, Any] | None:
    """Remove plans in objects of this name from a body; return None if there are none. A client's
    own plan could name another tenant."""
    values: list[Any] = [fields]
    is_found = False
    while values:  # as deeply nested as the parser allows
        value = values.pop()
        if isinstance(value, dict):
            params = value.get(params_field)
            if isinstance(params, dict) and PARAMS_KEY in params:
                rest = {name: params[name] for name in params if name != PARAMS_KEY}
                value[params_field], is_found = rest or None, True
            value = value.values()
        values += [inner for inner in value if isinstance(inner, dict | list)]
    return fields if is_found else None


def _has_plan(data: bytes, params_field: str) -> bool:
    """Return True if Python's parser, which servers use, finds a plan: it reads UTF-16, NaN."""
    fields = json_value(data)
    return isinstance(fields, dict) and _without_plan(fields, params_field) is not None


def _may_name_us(data: bytes) -> bool:
    """Return False for a body without our name, spelt with escapes or in UTF-16 either."""
    return _MARK in data or b"\\u" in data or b"\0" in data[:4] or data[:1] > b"\x7f"


def _tenant(asked: ChunkFields, fields: Mapping[str, Any]) -> str:
    """Return whose chunks a request shares: both names in a hash, or nothing without them."""
    names = [asked.tenant, str(fields.get("cache_salt") or "")]
    return hashlib.sha256(msgspec.json.encode(names)).hexdigest() if any(names) else ""
