"""The chat-session API: the client sends only new turns, the proxy keeps the history.

A turn is added when its response is complete, and before the client gets the response's end; until
then the session does not change.
"""

import uuid
from collections.abc import Sequence
from functools import partial
from typing import Annotated

from fastapi import Query
from pydantic import ValidationError
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message

from ragboost.errors import (
    RequestError,
    SessionConflictError,
    SessionNotFoundError,
    SessionStoreError,
)
from ragboost.proxy.asgi.client_exchange import ClientExchange
from ragboost.proxy.asgi.content_coding import BodyTooLargeError
from ragboost.proxy.asgi.errors import invalid_request
from ragboost.proxy.records import SentRequest
from ragboost.proxy.routes.completions import Completions, Passthrough
from ragboost.proxy.routes.running_turns import RunningTurn
from ragboost.proxy.routes.schemas import (
    MAX_USER,
    DeletedSession,
    NewSession,
    SessionObject,
    SessionPage,
    SessionTranscript,
    TypedRoute,
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
_TAG = "sessions"


class SessionRoutes:
    """The typed routes of the API, and the route of its turns."""

    def __init__(self, state: ProxyState) -> None:
        self._ttl_s = state.settings.session.ttl_s
        self._store = state.store
        self._turns = state.turns
        self._guard = partial(_Guarded, state=state)
        self._chat = SessionTurns(state)

    def routes(self) -> list[BaseRoute]:
        route = partial(TypedRoute, tag=_TAG, wrap=self._guard)
        new = {"application/json": {"schema": {"$ref": "#/components/schemas/NewSession"}}}
        return [
            route(
                _PATH,
                self.create_session,
                method="POST",
                status_code=201,
                errors=(400, 401, 408, 413, 415),
                openapi_extra={"requestBody": {"content": new}},
            ),
            route(_PATH, self.list_sessions, errors=(400, 401, 404)),
            route(
                _PATH + "/{session_id}",
                self.get_session,
                response_model=SessionTranscript,
                errors=(401, 404, 409, 410),
            ),
            route(_PATH + "/{session_id}", self.delete_session, method="DELETE", errors=(401, 404)),
            Route(_PATH + "/{session_id}/chat/completions", self._chat, methods=["POST"]),
        ]

    async def create_session(self, request: Request) -> SessionObject:
        """Create a session."""
        try:
            new = NewSession.model_validate_json(await request.body() or b"{}")
        except ValidationError as error:
            raise invalid_request(error.errors()) from None
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
        return self._object(session)

    async def list_sessions(
        self,
        request: Request,
        user: Annotated[
            str, Query(min_length=1, max_length=MAX_USER, description="As in its sessions.")
        ],
        limit: Annotated[int, Query(ge=1, le=100)] = 20,
        after: Annotated[str | None, Query(description="Id of the last session seen.")] = None,
    ) -> SessionPage:
        """List the sessions that were created for a `user`, newest first.

        Sessions without a `user` are in no list.
        """
        owner = user_of(request.scope["headers"])
        page = await self._store.list(owner, user, limit=limit, after=after)
        if page is None:
            raise SessionNotFoundError(f"after: there is no session {after}", param="after")
        sessions = [self._object(session) for session in page.sessions]
        return SessionPage(
            data=sessions,
            first_id=sessions[0].id if sessions else None,
            last_id=sessions[-1].id if sessions else None,
            has_more=page.has_more,
        )

    async def get_session(self, request: Request, session_id: str) -> Response:
        """Return a session with its messages."""
        session, turns = await _read(self._store, user_of(request.scope["headers"]), session_id)
        history = read_history(turns, system=session.system)
        # The messages stay byte for byte as they were written.
        head = self._object(session).model_dump_json().encode().removesuffix(b"}")
        body = head + b',"messages":[' + b",".join(history.messages) + b"]}"
        return Response(body, media_type="application/json")

    async def delete_session(self, request: Request, session_id: str) -> DeletedSession:
        """Delete a session."""
        owner = user_of(request.scope["headers"])
        is_running = self._turns.delete(owner, session_id)
        if not await self._store.delete(owner, session_id) and not is_running:
            raise _not_found(session_id)
        return DeletedSession(id=session_id)

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
        owner, session_id = (
            user_of(exchange.headers),
            str(exchange.scope["path_params"]["session_id"]),
        )
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
