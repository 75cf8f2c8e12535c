"""The chat-session API: the client sends new turns only, the proxy keeps the history.

A turn counts when its answer is whole; until then the session is as it was. Does not know how
histories are rewritten or stored.
"""

import logging
import time
import uuid
from typing import Any

from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ragboost.config import Settings
from ragboost.errors import RequestError, SessionNotFoundError
from ragboost.proxy.asgi.disconnect import ClientWatch
from ragboost.proxy.asgi.limits import BodyTooLargeError
from ragboost.proxy.asgi.request_context import RequestContext
from ragboost.proxy.observability.metrics import Metrics
from ragboost.proxy.pipeline import BoostPipeline
from ragboost.proxy.routes.completions import Completions
from ragboost.proxy.routes.passthrough import Passthrough
from ragboost.proxy.routes.running_turns import RunningTurns
from ragboost.proxy.routes.session_history import SessionHistory, SessionTurn, read_history
from ragboost.proxy.routes.session_requests import TurnRequest, make_turn, parse_new_session
from ragboost.proxy.routing.admission import Admission, Dispatcher
from ragboost.proxy.upstream.request import UpstreamRequest
from ragboost.proxy.upstream.response_reader import Message, ResponseReader
from ragboost.rewriting.sent_history import HistoryDelta
from ragboost.rewriting.tenants import user_of
from ragboost.sessions import ChatSession, ChatSessionStore

logger = logging.getLogger(__name__)

_CHAT = "/v1/chat/completions"
_PATH = "/v1/sessions"
_DEFAULT_LIMIT, _MAX_LIMIT = 20, 100


class SessionList(Passthrough):
    """`POST` and `GET /v1/sessions`."""

    endpoint = "sessions"

    def __init__(
        self,
        settings: Settings,
        *,
        dispatcher: Dispatcher,
        metrics: Metrics,
        store: ChatSessionStore,
    ) -> None:
        super().__init__(settings, dispatcher=dispatcher, metrics=metrics)
        self._store = store
        self._ttl_s = settings.session.ttl_s

    async def _forward(
        self, exchange: RequestContext, watch: ClientWatch, admission: Admission, body: bytes
    ) -> None:
        if exchange.method == "POST":
            response = await self._create(user_of(exchange.headers), body)
        else:
            response = await self._list(exchange)
        await _respond(exchange, watch, response)

    async def _create(self, owner: str, body: bytes) -> Response:
        new = parse_new_session(body)
        now = time.time()
        session = ChatSession(
            id=f"sess_{uuid.uuid4().hex}",
            owner=owner,
            created_at=now,
            used_at=now,
            model=new.model,
            system=new.system,
            metadata=new.metadata,
        )
        await self._store.create(session)
        return JSONResponse(_shown(session, self._ttl_s), 201)

    async def _list(self, exchange: RequestContext) -> Response:
        query = exchange.query
        limit, after = query.get("limit", str(_DEFAULT_LIMIT)), query.get("after")
        if not (limit.isdecimal() and len(limit) < 4 and 1 <= int(limit) <= _MAX_LIMIT):
            raise RequestError(f"limit must be 1 to {_MAX_LIMIT}, got {limit[:20]}", param="limit")
        owner = user_of(exchange.headers)
        page = await self._store.list(owner, limit=int(limit), after=after)
        if page is None:
            raise SessionNotFoundError(f"after: there is no session {after}", param="after")
        data = [_shown(session, self._ttl_s) for session in page.sessions]
        return JSONResponse(
            {
                "object": "list",
                "data": data,
                "first_id": data[0]["id"] if data else None,
                "last_id": data[-1]["id"] if data else None,
                "has_more": page.has_more,
            }
        )


class SessionItem(Passthrough):
    """`GET` and `DELETE /v1/sessions/{id}`."""

    endpoint = "sessions"

    def __init__(
        self,
        settings: Settings,
        *,
        dispatcher: Dispatcher,
        metrics: Metrics,
        store: ChatSessionStore,
        turns: RunningTurns,
    ) -> None:
        super().__init__(settings, dispatcher=dispatcher, metrics=metrics)
        self._store = store
        self._turns = turns
        self._ttl_s = settings.session.ttl_s

    async def _forward(
        self, exchange: RequestContext, watch: ClientWatch, admission: Admission, body: bytes
    ) -> None:
        owner, session_id = user_of(exchange.headers), _session_id(exchange)
        await self._turns.settled(session_id)
        if exchange.method == "DELETE":
            if not await self._store.delete(owner, session_id):
                raise _not_found(session_id)
            deleted = {"id": session_id, "object": "session.deleted", "deleted": True}
            await _respond(exchange, watch, JSONResponse(deleted))
            return
        session = await _get(self._store, owner, session_id)
        history = read_history(await self._store.turns(session_id), system=session.system)
        head = JSONResponse(_shown(session, self._ttl_s)).body
        messages = b",".join(history.messages)
        whole = bytes(head[:-1]) + b',"messages":[' + messages + b"]}"
        await _respond(exchange, watch, Response(whole, media_type="application/json"))


class SessionTurns(Completions):
    """`POST /v1/sessions/{id}/chat/completions`."""

    def __init__(
        self,
        settings: Settings,
        *,
        dispatcher: Dispatcher,
        metrics: Metrics,
        boosting: BoostPipeline,
        store: ChatSessionStore,
        turns: RunningTurns,
    ) -> None:
        super().__init__(
            settings,
            endpoint="session_chat",
            dispatcher=dispatcher,
            metrics=metrics,
            boosting=boosting,
        )
        self._store = store
        self._turns = turns

    async def _forward(
        self, exchange: RequestContext, watch: ClientWatch, admission: Admission, body: bytes
    ) -> None:
        owner, session_id = user_of(exchange.headers), _session_id(exchange)
        await _get(self._store, owner, session_id)  # nobody learns of others' sessions by a 409
        async with self._turns.hold(session_id) as running:
            session = await _get(self._store, owner, session_id)
            turns = await self._store.turns(session_id)
            history = read_history(turns, system=session.system)
            request = make_turn(body, history.messages, model=session.model)
            upstream = await self._prepare(exchange, admission, request, history)
            exchange.scope = {**exchange.scope, "path": _CHAT, "raw_path": _CHAT.encode()}

            def commit(answers: list[Message]) -> None:
                if answers:  # the first choice continues the session
                    delta = upstream.result.delta if upstream.result is not None else None
                    answered = SessionTurn.of(request.new, answers[0], delta or HistoryDelta())
                    running.start_commit(self._commit(session, answered))

            reader = ResponseReader(strips_usage=upstream.is_usage_added, on_messages=commit)
            running.is_ending = lambda: reader.is_ending
            await self._relay(exchange, watch, admission, upstream, reader=reader)

    async def _prepare(
        self,
        exchange: RequestContext,
        admission: Admission,
        request: TurnRequest,
        history: SessionHistory,
    ) -> UpstreamRequest:
        limit = self._settings.proxy.max_body_bytes
        if len(request.body) > limit:
            raise BodyTooLargeError(
                f"the session with this turn has {len(request.body)} bytes, more than the {limit} "
                "of proxy.max_body_bytes; start another one"
            )

        try:
            return await self._boosting.prepare(
                request.body,
                exchange.headers,
                admission,
                session=_session_id(exchange),
                history=history.sent,
            )
        except RequestError as error:
            if request.is_flat and error.param:  # the client gave the field without our object
                error.args = (str(error).replace("ragboost.documents", "documents"),)
                error.param = error.param.removeprefix("ragboost.")
            raise

    async def _commit(self, session: ChatSession, turn: SessionTurn) -> None:
        if not await self._store.append(session, turn.encode()):
            logger.warning("session %s was deleted or continued elsewhere", session.id)


def session_routes(
    settings: Settings,
    *,
    dispatcher: Dispatcher,
    metrics: Metrics,
    boosting: BoostPipeline,
    store: ChatSessionStore,
    turns: RunningTurns,
) -> list[Route]:
    """The routes of the API."""
    every = SessionList(settings, dispatcher=dispatcher, metrics=metrics, store=store)
    one = SessionItem(settings, dispatcher=dispatcher, metrics=metrics, store=store, turns=turns)
    chat = SessionTurns(
        settings,
        dispatcher=dispatcher,
        metrics=metrics,
        boosting=boosting,
        store=store,
        turns=turns,
    )
    return [
        Route(_PATH, every, methods=["GET", "POST"]),
        Route(_PATH + "/{session_id}", one, methods=["GET", "DELETE"]),
        Route(_PATH + "/{session_id}/chat/completions", chat, methods=["POST"]),
    ]


def _session_id(exchange: RequestContext) -> str:
    return str(exchange.scope["path_params"]["session_id"])


async def _get(store: ChatSessionStore, owner: str, session_id: str) -> ChatSession:
    session = await store.get(owner, session_id)
    if session is None:
        raise _not_found(session_id)
    return session


def _not_found(session_id: str) -> SessionNotFoundError:
    return SessionNotFoundError(
        f"there is no session {session_id[:80]}, or it has expired", param="session_id"
    )


def _shown(session: ChatSession, ttl_s: float) -> dict[str, Any]:
    return {
        "id": session.id,
        "object": "session",
        "created_at": int(session.created_at),
        "last_used_at": int(session.used_at),
        "expires_at": int(session.used_at + ttl_s),
        "model": session.model,
        "system": session.system,
        "metadata": dict(session.metadata),
        "num_turns": session.num_turns,
    }


async def _respond(exchange: RequestContext, watch: ClientWatch, response: Response) -> None:
    response.headers["x-request-id"] = exchange.request_id
    watch.finish()
    await response(exchange.scope, exchange.receive, exchange.send)
