"""The JSON shapes of the proxy's own endpoints, checked by pydantic and shown in their reference.

Completions are not among them: their bodies are the backend's.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints
from starlette.responses import Response

_Metadata = dict[
    Annotated[str, StringConstraints(max_length=512)],
    Annotated[str, StringConstraints(max_length=512)],
]
_MAX_USER = 512


class NewSession(BaseModel):
    """The body that creates a session; an empty one is `{}`."""

    model_config = ConfigDict(extra="forbid")

    user: str | None = Field(
        None,
        min_length=1,
        max_length=_MAX_USER,
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


class SessionQuery(BaseModel):
    """The query that lists sessions."""

    user: str = Field(min_length=1, max_length=_MAX_USER, description="As in its sessions.")
    limit: int = Field(20, ge=1, le=100)
    after: str | None = Field(None, description="Id of the last session seen.")


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


def json_response(model: BaseModel, *, status: int = 200, exclude_none: bool = False) -> Response:
    text = model.model_dump_json(exclude_none=exclude_none)
    return Response(text, status, media_type="application/json")
