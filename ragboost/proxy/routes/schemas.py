"""The JSON shapes of the proxy's own routes, checked by pydantic and shown in its OpenAPI document.

Completions are not among them: their bodies are the backend's.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

_Metadata = dict[
    Annotated[str, StringConstraints(max_length=512)],
    Annotated[str, StringConstraints(max_length=512)],
]


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
    model: str | None
    system: str | None
    metadata: dict[str, str]
    num_turns: int


class SessionTranscript(SessionObject):
    """A chat session with its messages."""

    messages: list[dict[str, Any]] = Field(description="As the client and the backend wrote them.")


class SessionPage(BaseModel):
    """Sessions of the caller, newest first."""

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
    workers: dict[str, Literal["ready", "no answer"]] | None = Field(
        None, description="By number of the worker; absent with one process."
    )


class VersionInfo(BaseModel):
    """The version of RAGBoost."""

    version: str


class DashboardTotals(BaseModel):
    """Counters since the start, and sizes now."""

    requests: float
    errors: float = Field(description="Requests that failed, without errors of clients.")
    bypassed: float
    documents_sent: float
    documents_dropped: float
    prompt_tokens: float
    cached_tokens: float
    reused_tokens: float = Field(description="Reused from stored chunks.")
    recomputed_tokens: float = Field(description="Of stored chunks, computed again.")
    bought_tokens: float = Field(description="Of stored chunks, computed to become a prefix.")
    dropped_tokens: float = Field(description="Of documents that were not sent again.")
    cost: float = Field(description="Of the prompts of models with a price.")
    uncached_cost: float = Field(description="The same without cache and de-duplication.")
    compared_tokens: float = Field(
        description="Document tokens of a sample of requests, in which both orders are compared."
    )
    compared_sent_tokens: float = Field(
        description="Of these, modelled as cached in the client's order."
    )
    compared_boosted_tokens: float = Field(
        description="Of these, modelled as cached in the order of boosting."
    )
    index_nodes: int
    sessions: int
    waiting: int


class FirstTokenTimes(BaseModel):
    """Times to first token."""

    count: float
    p50_ms: float | None
    p95_ms: float | None


class ArmFigures(FirstTokenTimes):
    """Requests with documents, boosted or held out."""

    prompt_tokens: float
    cached_tokens: float
    cost: float = Field(description="Of the prompts of models with a price.")


class PredictionQuality(BaseModel):
    """Predicted against reported cached tokens, over the last 512 requests."""

    precision: float
    recall: float


class DashboardHistory(BaseModel):
    """Samples of the last hour, one every five seconds, in columns."""

    time: list[float] = Field(description="Seconds since 1970.")
    prompt_tokens: list[float]
    cached_tokens: list[float]
    requests: list[float]


class DashboardBackend(BaseModel):
    """A backend and its load."""

    name: str
    is_healthy: bool
    problem: str | None = Field(description="Why it is not healthy.")
    running: int
    prefill_tokens: int
    hold_limit_tokens: float | None
    kv_events: list[str] = Field(
        description="States of its streams of cache events, with the reason of silence."
    )


class HotPrefix(BaseModel):
    """A node of a context index."""

    name: str = Field(description="Digits of the key of its last document.")
    documents: list[str] = Field(description="Labels of the first documents.")
    num_documents: int
    num_tokens: int
    age: int = Field(description="Insertions and uses since its last use.")
    num_children: int
    children: list["HotPrefix"]


class DashboardIndex(BaseModel):
    """A context index and its most recently used prefixes."""

    model: str
    backend: str
    num_nodes: int
    num_tokens: int
    children: list[HotPrefix]


class RecentCompletion(BaseModel):
    """A finished completion, with labels of its documents before and after boosting."""

    time: float = Field(description="Seconds since 1970.")
    endpoint: str
    model: str
    backend: str
    status: int
    bypass: str | None
    cache_break: str | None = Field(
        description="Why its prompt is not the continuation of the one before."
    )
    ttft_ms: float | None
    prompt_tokens: int | None
    cached_tokens: int | None
    reused_tokens: int | None = Field(description="Reused from stored chunks.")
    recomputed_tokens: int | None = Field(description="Of stored chunks, computed again.")
    bought_tokens: int | None = Field(description="Of stored chunks, computed to become a prefix.")
    before: list[str]
    after: list[str]


class VaryingText(BaseModel):
    """Text that differs from request to request before the documents."""

    model: str
    advice: str = Field(description="Its tokens, how often it differs, and what helps.")


class CacheBreakFigures(BaseModel):
    """Requests that are not the continuation of the one before, of one cause."""

    count: float
    lost_tokens: float = Field(description="That would have been cached without it, estimated.")
    mend: str


class DashboardData(BaseModel):
    """The figures of the dashboard."""

    version: str
    now: float = Field(description="Seconds since 1970.")
    started: float = Field(description="Seconds since 1970.")
    totals: DashboardTotals
    errors: dict[str, float] = Field(description="Requests by the kind of their error.")
    arms: dict[str, ArmFigures] = Field(
        description="Of a hold-out, `boosted` and `held_out`; empty without one."
    )
    cache_breaks: dict[str, CacheBreakFigures] = Field(description="By cause, the worst first.")
    ttft: dict[str, FirstTokenTimes] = Field(description="For `boosted` and `bypassed` requests.")
    fidelity: PredictionQuality
    history: DashboardHistory
    backends: list[DashboardBackend]
    varying: list[VaryingText]
    indexes: list[DashboardIndex] = Field(description="Those used last.")
    recent: list[RecentCompletion] = Field(description="Latest first.")
