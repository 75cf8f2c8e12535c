"""The route of the proxy's own endpoints, and their JSON shapes, checked by pydantic and shown in
the OpenAPI document.

Completions are not among them: their bodies are the backend's.
"""

from collections.abc import Callable
from typing import Annotated, Any, Literal

from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, Field, StringConstraints
from starlette.routing import Match
from starlette.types import ASGIApp, Receive, Scope, Send

_Metadata = dict[
    Annotated[str, StringConstraints(max_length=512)],
    Annotated[str, StringConstraints(max_length=512)],
]


MAX_USER = 512


class ProxyError(BaseModel):
    """The reason for which a request failed."""

    message: str
    type: str
    param: str | None = Field(description="Path of the offending field.")
    code: str = Field(description="The HTTP status.")


class ProxyErrorResponse(BaseModel):
    """Every error of the proxy, in OpenAI's shape."""

    error: ProxyError


class NewSession(BaseModel):
    """The body that creates a session; an empty one is `{}`."""

    model_config = ConfigDict(extra="forbid")

    user: str | None = Field(
        None,
        min_length=1,
        max_length=MAX_USER,
        description="Who may list the session, by this name; without one, nobody may.",
    )
    model: str | None = Field(None, description="Model of turns that name none.")
    system: str | None = Field(None, description="System prompt of the session.")
    metadata: _Metadata | None = Field(
        None, max_length=16, description="Up to 16 strings of up to 512 characters."
    )


class SessionObject(BaseModel):
    """A chat session without its messages."""

    id: str
    object: Literal["session"] = "session"
    created_at: int = Field(description="Seconds since 1970.")
    last_used_at: int = Field(description="Seconds since 1970.")
    expires_at: int = Field(description="Seconds since 1970, unless it is used again.")
    user: str | None
    model: str | None
    system: str | None
    metadata: dict[str, str]
    num_turns: int


class SessionTranscript(SessionObject):
    """A chat session with its messages."""

    messages: list[dict[str, Any]] = Field(description="As the client and the backend wrote them.")


class SessionPage(BaseModel):
    """Sessions of a user, newest first."""

    object: Literal["list"] = "list"
    data: list[SessionObject]
    first_id: str | None
    last_id: str | None = Field(description="Value of `after` for the next page.")
    has_more: bool


class DeletedSession(BaseModel):
    """The confirmation of a deletion."""

    id: str
    object: Literal["session.deleted"] = "session.deleted"
    deleted: Literal[True] = True


class Liveness(BaseModel):
    """The process serves requests."""

    status: Literal["ok"] = "ok"


class EventStreamReadiness(BaseModel):
    """A stream of cache events."""

    backend: str
    state: str = Field(description="`exact`, `degraded` or `fallback`.")
    reason: str | None = Field(
        None, description="Why nothing arrives, and the way out; absent if something does."
    )


class Readiness(BaseModel):
    """Readiness of the backends, of the session store, and of the streams of cache events."""

    status: Literal["ready", "degraded", "no backend works"]
    backends: dict[str, str] | None = Field(
        None, description="What is wrong with a backend, by its name; absent if nothing is."
    )
    sessions: str | None = Field(
        None, description="Last failure of the session API's store; absent if it works."
    )
    kv_events: dict[str, EventStreamReadiness] | None = Field(
        None, description="By name of the stream; absent without streams."
    )


class VersionInfo(BaseModel):
    """The version of RAGBoost."""

    version: str


class ExplainedDocument(BaseModel):
    """A document that the proxy sees in a request."""

    begins: str = Field(description="Its first words.")
    tokens: int


class RequestExplanation(BaseModel):
    """A request as the proxy sees it, and the request that it would send."""

    detection: str = Field(description="`found`, or the reason for which nothing is boosted.")
    frame: str = Field(description="The marks around the documents; empty if there are none.")
    documents: list[ExplainedDocument] = Field(description="In the client's order.")
    order: list[int] = Field(
        description="The documents sent, by their places in the client's order, if another request "
        "had brought the same ones in reverse order."
    )
    note: str = Field(description="What the model would be told about them.")
    tokens_before: int = Field(description="Of the texts that may hold documents.")
    tokens_after: int
    is_counted: bool = Field(description="By a tokenizer; else estimated.")
    why: str = Field(description="Why nothing is boosted; empty if something is.")
    advice: str = Field(description="The smallest change that helps; empty if there is none.")
    sent: dict[str, Any] | None = Field(
        description="The body for the backend; null if it is malformed or would be refused."
    )


class TypedRoute(APIRoute):
    """A FastAPI route that also serves HEAD where it serves GET, as Starlette's routes do.

    The first line of the endpoint's docstring is the summary.
    """

    def __init__(
        self,
        path: str,
        endpoint: Callable[..., Any],
        *,
        tag: str,
        method: str = "GET",
        errors: tuple[int, ...] = (),
        wrap: Callable[[ASGIApp], ASGIApp] | None = None,
        **options: Any,
    ) -> None:
        summary, _, description = (endpoint.__doc__ or "").strip().partition("\n\n")
        responses: dict[int | str, dict[str, Any]]
        responses = {status: {"model": ProxyErrorResponse} for status in errors}
        super().__init__(
            path,
            endpoint,
            methods=[method],
            tags=[tag],
            summary=summary.rstrip("."),
            responses={**responses, **options.pop("responses", {})},
            **options,
        )
        self.description = " ".join(description.split())  # without the summary
        if wrap is not None:
            self.app = wrap(self.app)

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        if scope["type"] == "http" and scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}
        return super().matches(scope)

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app(scope, receive, send)
