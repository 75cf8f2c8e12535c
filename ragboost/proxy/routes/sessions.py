"""The chat-session API: the client sends only new turns, the proxy keeps the history.

A turn is added when its response is complete, and before the client gets the response's end; until
then the session does not change.
"""

import uuid
from collections.abc import Sequence
from functools import partial

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Scope

from ragboost.errors import (
    RequestError,
    SessionConflictError,
    SessionNotFoundError,
    SessionStoreError,
)
from ragboost.proxy.asgi.client_exchange import ClientExchange
from ragboost.proxy.asgi.content_coding import BodyTooLargeError
from ragboost.proxy.asgi.errors import refusing_what_is_invalid
from ragboost.proxy.records import SentRequest
from ragboost.proxy.routes.completions import Completions, Passthrough
from ragboost.proxy.routes.running_turns import RunningTurn
from ragboost.proxy.routes.schemas import (
    DeletedSession,
    NewSession,
    SessionObject,
    SessionPage,
    SessionQuery,
    json_response,
)
from ragboost.proxy.routes.session_requests import (
    SessionHistory,
    SessionTurn,
    TurnRequest,
    make_turn,
    read_history,
)
from ragboost.proxy.routing.admission import Admission
from ragboost.proxy.sessions import ChatSession, ChatSessionStore, Transcript
from ragboost.proxy.state import ProxyState
from ragboost.proxy.upstream.response_reader import ResponseReader
from ragboost.requests.headers import user_of
from ragboost.requests.parsed_request import ParsedRequest, run_bytes
from ragboost.requests.wires.chat_answers import AnswerMessage

_CHAT = "/v1/chat/completions"
_PATH = "/v1/sessions"


class SessionRoutes:
    """The typed routes of the API, and the route of its turns."""

    def __init__(self, state: ProxyState) -> None:
        self._ttl_s = state.settings.session.ttl_s
        self._store = state.store
        self._turns = state.turns
        self._guard = partial(_Guarded, state=state)
        self._chat = SessionTurns(state)

    def routes(self) -> list[BaseRoute]:
        one = _PATH + "/{session_id}"
        routes = [
            Route(_PATH, self.create_session, methods=["POST"]),
            Route(_PATH, self.list_sessions),
            Route(one, self.get_session),
            Route(one, self.delete_session, methods=["DELETE"]),
        ]
        for route in routes:
            route.app = self._guard(route.app)
        return [*routes, Route(one + "/chat/completions", self._chat, methods=["POST"])]

    async def create_session(self, request: Request) -> Response:
        """Create a session."""
        with refusing_what_is_invalid():
            new = NewSession.model_validate_json(await request.body() or b"{}")
        now = self._store.now()
        session = ChatSession(
            id=f"sess_{uuid.uuid4().hex}",
            owner=user_of(request.scope["headers"]),
            created_at=now,
            used_at=now,
            user=new.user,
            model=new.model,
            system=new.system,
            metadata=new.metadata or {},
        )
        await self._store.create(session)
        return json_response(self._object(session), status=201)

    async def list_sessions(self, request: Request) -> Response:
        """List the sessions that were created for a `user`, newest first.

        Sessions without a `user` are in no list.
        """
        owner = user_of(request.scope["headers"])
        with refusing_what_is_invalid():
            query = SessionQuery.model_validate(dict(request.query_params))
        user, limit, after = query.user, query.limit, query.after
        page = await self._store.list(owner, user, limit=limit, after=after)
        if page is None:
            raise SessionNotFoundError(f"after: there is no session {after}", param="after")
        sessions = [self._object(session) for session in page.sessions]
        answer = SessionPage(
            data=sessions,
            first_id=sessions[0].id if sessions else None,
            last_id=sessions[-1].id if sessions else None,
            has_more=page.has_more,
        )
        return json_response(answer)

    async def get_session(self, request: Request) -> Response:
        """Return a session with its messages."""
        owner, session_id = _named_in(request.scope)
        session, turns = await _read(self._store, owner, session_id)
        history = read_history(turns, system=session.system)
        # The messages stay byte for byte as they were written.
        head = self._object(session).model_dump_json().encode().removesuffix(b"}")
        body = head + b',"messages":[' + b",".join(history.messages) + b"]}"
        return Response(body, media_type="application/json")

    async def delete_session(self, request: Request) -> Response:
        """Delete a session."""
        owner, session_id = _named_in(request.scope)
        is_running = self._turns.delete(owner, session_id)
        if not await self._store.delete(owner, session_id) and not is_running:
            raise _not_found(session_id)
        return json_response(DeletedSession(id=session_id))

    def _object(self, session: ChatSession) -> SessionObject:
        return SessionObject(
            id=session.id,
            created_at=int(session.created_at),
            last_used_at=int(session.used_at),
            expires_at=int(session.used_at + self._ttl_s),
            user=session.user,
            model=session.model,
            system=session.system,
            metadata=dict(session.metadata),
            num_turns=session.num_turns,
        )


class _Guarded(Passthrough):
    """A typed route with the API keys, limits, metrics and access log of the raw endpoints."""

    endpoint = "sessions"

    def __init__(self, app: ASGIApp, state: ProxyState) -> None:
        super().__init__(state)
        self._app = app

    async def _answer(self, exchange: ClientExchange) -> None:
        body = await self._bodies.read_text(exchange)

        async def receive() -> Message:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                exchange.status = message["status"]
                exchange.outcome = "refused" if exchange.status >= 400 else "ok"
                MutableHeaders(scope=message)["x-request-id"] = exchange.request_id
            await exchange.send(message)

        await self._app(exchange.scope, receive, send)


class SessionTurns(Completions):
    """`POST /v1/sessions/{id}/chat/completions`."""

    def __init__(self, state: ProxyState) -> None:
        super().__init__(state, endpoint="session_chat")
        self._store = state.store
        self._turns = state.turns

    async def _forward(self, exchange: ClientExchange, admission: Admission, body: bytes) -> None:
        owner, session_id = _named_in(exchange.scope)
        async with self._turns.hold(session_id, owner=owner) as running:
            session, turns = await _read(self._store, owner, session_id)
            await self._store.check()  # a model is not to work for a turn that cannot be stored
            history = read_history(turns, system=session.system)
            make = partial(make_turn, body, history.messages, model=session.model)
            request = await run_bytes(make, len(body) + sum(map(len, history.messages)))
            parsed, sent = await self._prepare(exchange, admission, request, history)
            exchange.scope = {**exchange.scope, "path": _CHAT, "raw_path": _CHAT.encode()}

            def commit(answers: list[AnswerMessage]) -> None:
                if not answers:
                    running.end(None)
                    return
                # The first choice continues the session.
                answered = SessionTurn.of(request.new, answers[0], sent.delta)
                running.end(self._commit(running, session, turns, answered))

            reader = ResponseReader(
                mapper=sent.mapper(),
                strips_usage=sent.is_usage_added,
                on_messages=commit,
                before_end=running.stored,
                write_receipt=self._receipt_writer(parsed, sent, admission),
            )
            await self._relay(exchange, admission, parsed, sent, reader=reader)

    async def _prepare(
        self,
        exchange: ClientExchange,
        admission: Admission,
        request: TurnRequest,
        history: SessionHistory,
    ) -> tuple[ParsedRequest, SentRequest]:
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
                session=exchange.scope["path_params"]["session_id"],
                history=history.sent,
                team=exchange.team,
            )
        except RequestError as error:
            if request.is_flat and error.param:  # the client gave the field without our object
                error.args = (str(error).replace("ragboost.documents", "documents"),)
                error.param = error.param.removeprefix("ragboost.")
            raise

    async def _commit(
        self, running: RunningTurn, session: ChatSession, turns: Sequence[bytes], turn: SessionTurn
    ) -> None:
        new, is_stored = turn.encode(), False
        try:
            if not running.is_deleted:
                is_stored = await self._store.append(session, new)
            # It may have been dropped for others while the turn ran.
            if not is_stored and not running.is_deleted:
                is_stored = await self._store.restore(session, [*turns, new])
        except SessionStoreError as error:
            raise SessionStoreError(f"this turn is not stored: {error}") from error
        if not is_stored:
            raise SessionConflictError(
                "this turn is not stored: its session was deleted or continued elsewhere",
                param="session_id",
            )


def _named_in(scope: Scope) -> tuple[str, str]:
    """Return the owner and the id of the session that a request names."""
    return user_of(scope["headers"]), str(scope["path_params"]["session_id"])


async def _read(store: ChatSessionStore, owner: str, session_id: str) -> Transcript:
    transcript = await store.read(owner, session_id)
    if transcript is None:
        raise _not_found(session_id)
    if len(transcript.turns) != transcript.session.num_turns:
        raise SessionConflictError(
            f"session {session_id} has just changed; retry", param="session_id"
        )
    return transcript


def _not_found(session_id: str) -> SessionNotFoundError:
    return SessionNotFoundError(
        f"there is no session {session_id[:80]}, or it has expired", param="session_id"
    )
