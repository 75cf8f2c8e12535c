"""The OpenAPI document of the proxy's routes, for its reference page."""

from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, Field
from pydantic.json_schema import models_json_schema
from starlette.routing import Route

from ragboost.engine_hooks.reports import CONTENT_TYPE, REPORT_PATH
from ragboost.proxy.app import create_app
from ragboost.proxy.routes import schemas
from ragboost.proxy.routes.explain import EXPLAIN_PATH
from ragboost.requests.wires.registry import WIRES


class ProxyError(BaseModel):
    """The reason for which a request failed."""

    message: str
    type: str
    param: str | None = Field(description="Path of the offending field.")
    code: str = Field(description="The HTTP status.")


class ProxyErrorResponse(BaseModel):
    """Every error of the proxy, in OpenAI's shape."""

    error: ProxyError


class SessionTranscript(schemas.SessionObject):
    """A chat session with its messages."""

    messages: list[dict[str, Any]] = Field(description="As the client and the backend wrote them.")


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


_DOCUMENTS = {
    "type": "array",
    "description": "Retrieved documents by relevance: strings, or objects with `text` and "
    "optionally `id`, `title`, `score`.",
    "items": {"anyOf": [{"type": "string"}, {"type": "object"}]},
}
_OPTIONS = {
    "type": "object",
    "description": "`boost`: false renders the documents in the given order, without hints.",
    "properties": {"boost": {"type": "boolean", "default": True}},
}
_OBJECT = {
    "type": "object",
    "description": "RAGBoost's part of a completion's body, removed before it is forwarded.",
    "properties": {
        "documents": _DOCUMENTS,
        "session_id": {"type": "string", "description": "Name of the conversation."},
        "options": _OPTIONS,
        "reuse": {
            "anyOf": [{"type": "string"}, {"type": "object"}],
            "description": "Chunk reuse, for engines that have it: `exact`, `approx`, or an object "
            "with `policy` and `ratio`.",
        },
        "graph": {"type": "object", "description": "Paths of a knowledge graph: `paths`."},
    },
    "additionalProperties": False,
}
_COMPLETION_BODY = {
    "type": "object",
    "description": "The backend's body, with the `ragboost` object if documents are given apart "
    "from the messages. All other fields are the backend's.",
    "properties": {"ragboost": {"$ref": "#/components/schemas/RagboostObject"}},
    "additionalProperties": True,
}
_TURN_BODY = {
    "type": "object",
    "description": "A new turn: `query` or `messages`, with `documents` or a `ragboost` object. "
    "All other fields are the backend's.",
    "properties": {
        "query": {"type": "string", "description": "The user's question."},
        "messages": {
            "type": "array",
            "description": "New messages, instead of `query`.",
            "items": {"type": "object"},
        },
        "documents": _DOCUMENTS,
        "ragboost": {"$ref": "#/components/schemas/RagboostObject"},
    },
    "additionalProperties": True,
}
_SCHEMAS = {
    "RagboostObject": _OBJECT,
    "CompletionBody": _COMPLETION_BODY,
    "SessionTurnBody": _TURN_BODY,
}

_REQUEST_HEADERS = {
    "x-ragboost-session": "Name of the conversation; `ragboost.session_id` overrides it.",
    "x-request-id": "Forwarded to the backend; made if absent.",
}
_RESPONSE_HEADERS = {
    "x-ragboost-documents": "Documents in this turn's message or field.",
    "x-ragboost-documents-dropped": "Given documents that were not sent again: duplicates, and "
    "those of earlier turns.",
    "x-ragboost-bypass": "Reason for which nothing was boosted; absent if something was.",
    "x-ragboost-frame": "Kind of marks around the documents that were seen; absent without any.",
    "x-ragboost-cache-break": "Where and why the prompt is not the continuation of the one before, "
    "and what helps; absent if it is.",
    "x-ragboost-overhead-ms": "Time for parsing, boosting and encoding.",
    "x-ragboost-backend": "Name of the backend that responded.",
    "x-ragboost-cached-tokens-predicted": "Prompt tokens that its prefix cache was expected to "
    "hold; 0 if unknown.",
    "x-ragboost-receipt": "With `proxy.receipts`, a JSON object with predicted, cached, dropped "
    "and saved tokens, and their cost; not on streams, which have it in `usage.ragboost`.",
    "x-request-id": "Of the request.",
}
# The proxy's own; any other status is the backend's.
_ERRORS = {
    "400": "The `ragboost` object is malformed.",
    "401": "The API key is missing or invalid.",
    "408": "The body did not arrive in time.",
    "413": "The body is too large.",
    "415": "The body is in a content coding that the proxy cannot decode.",
    "429": "The waiting room is full.",
    "502": "The backend cannot be reached.",
    "504": "The backend did not respond in time.",
}
_SESSION_ERRORS = {
    "404": "There is no such session.",
    "409": "Another turn is being answered, or the messages are in the session already.",
    "410": "A stored turn cannot be decoded.",
    "503": "The store of sessions fails.",
}


_TEXT = {"type": "string"}
_REPORT = {CONTENT_TYPE: {"schema": {"type": "string", "format": "binary"}}}


def _json(name: str) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}}


@dataclass(frozen=True)
class _Operation:
    """What the code of one of the proxy's own endpoints does not say."""

    tag: str
    answer: dict[str, Any]  # content of a good response
    errors: tuple[int, ...] = ()
    status: int = 200
    body: dict[str, Any] = field(default_factory=dict)  # content
    query: type[BaseModel] | None = None
    others: dict[str, Any] = field(default_factory=dict)  # responses in a shape of their own


_SESSIONS, _SESSION = "/v1/sessions", "/v1/sessions/{session_id}"
_OPERATIONS = {
    f"POST {_SESSIONS}": _Operation(
        "sessions",
        _json("SessionObject"),
        (400, 401, 408, 413, 415),
        status=201,
        body=_json("NewSession"),
    ),
    f"GET {_SESSIONS}": _Operation(
        "sessions", _json("SessionPage"), (400, 401, 404), query=schemas.SessionQuery
    ),
    f"GET {_SESSION}": _Operation("sessions", _json("SessionTranscript"), (401, 404, 409, 410)),
    f"DELETE {_SESSION}": _Operation("sessions", _json("DeletedSession"), (401, 404)),
    f"POST {REPORT_PATH}": _Operation(
        "engine hooks", _REPORT, (400, 401, 403, 408, 413), body=_REPORT
    ),
    f"POST {EXPLAIN_PATH}": _Operation(
        "operations",
        _json("RequestExplanation"),
        (401, 408, 413, 415),
        body=_json("CompletionBody"),
    ),
    "GET /health": _Operation("operations", _json("Liveness")),
    "GET /ready": _Operation(
        "operations",
        _json("Readiness"),
        others={"503": {"description": "No backend works.", "content": _json("Readiness")}},
    ),
    "GET /version": _Operation("operations", _json("VersionInfo")),
    "GET /chunk_reuse": _Operation("operations", {}, (404,), status=404),
    "GET /metrics": _Operation("operations", {"text/plain": {"schema": _TEXT}}, (401,)),
    "GET /dashboard": _Operation("dashboard", {"text/html": {"schema": _TEXT}}),
    "GET /dashboard/data": _Operation(
        "dashboard", {"application/json": {"schema": {"type": "object"}}}, (401,)
    ),
}


def proxy_document() -> dict[str, Any]:
    """Return the document: completions, then the proxy's own endpoints with their docstrings."""
    paths = _completion_paths()
    for route in create_app().own_routes:
        assert isinstance(route, Route), route
        method = next(iter(sorted((route.methods or set()) - {"HEAD"})))
        if operation := _OPERATIONS.get(f"{method} {route.path}"):
            about = _described(operation, route)
            paths.setdefault(route.path, {})[method.lower()] = about
    models = (ProxyErrorResponse, RequestExplanation, SessionTranscript, schemas.SessionPage)
    answers = (*models, schemas.DeletedSession, schemas.Liveness, schemas.Readiness)
    _, found = models_json_schema(
        [
            (schemas.NewSession, "validation"),
            *((model, "serialization") for model in (*answers, schemas.VersionInfo)),
        ],
        ref_template="#/components/schemas/{model}",
    )
    return {"paths": paths, "components": {"schemas": {**found["$defs"], **_SCHEMAS}}}


def _described(operation: _Operation, route: Route) -> dict[str, Any]:
    summary, _, description = (route.endpoint.__doc__ or "").strip().partition("\n\n")
    parameters = []
    if "{session_id}" in route.path:
        parameters.append(_parameter("session_id", "Id of the session.", where="path"))
    if operation.query is not None:
        for name, about in operation.query.model_json_schema()["properties"].items():
            parameters.append(_parameter(name, about.get("description", ""), where="query"))
    responses = {str(status): _error("") for status in operation.errors}
    if operation.status < 400:
        responses[str(operation.status)] = {"description": "", "content": operation.answer}
    return {
        "tags": [operation.tag],
        "summary": summary.rstrip("."),
        "description": " ".join(description.split()),
        "operationId": route.name,
        "parameters": parameters,
        "requestBody": {"content": operation.body},
        "responses": {**responses, **operation.others},
    }


def _completion_paths() -> dict[str, Any]:
    paths = {
        wire.path: {"post": _operation(wire.summary, tag="completions", body="CompletionBody")}
        for wire in WIRES
    }
    turn = _operation("Answer a turn of a session", tag="sessions", body="SessionTurnBody")
    turn["parameters"].insert(0, _parameter("session_id", "Id of the session.", where="path"))
    turn["responses"] |= {status: _error(about) for status, about in _SESSION_ERRORS.items()}
    return {**paths, "/v1/sessions/{session_id}/chat/completions": {"post": turn}}


def _operation(summary: str, *, tag: str, body: str) -> dict[str, Any]:
    schema = {"$ref": f"#/components/schemas/{body}"}
    headers = {
        name: {"description": about, "schema": {"type": "string"}}
        for name, about in _RESPONSE_HEADERS.items()
    }
    return {
        "tags": [tag],
        "summary": summary,
        "description": "",
        "operationId": summary.lower().replace(" ", "_"),
        "parameters": [
            _parameter(name, about, where="header") for name, about in _REQUEST_HEADERS.items()
        ],
        "requestBody": {"content": {"application/json": {"schema": schema}}, "required": True},
        "responses": {
            "200": {"description": "The backend's response, byte for byte.", "headers": headers},
            **{status: _error(about) for status, about in _ERRORS.items()},
        },
    }


def _parameter(name: str, about: str, *, where: str) -> dict[str, Any]:
    return {
        "name": name,
        "in": where,
        "required": where == "path",
        "description": about,
        "schema": {"type": "string"},
    }


def _error(about: str) -> dict[str, Any]:
    schema = {"$ref": "#/components/schemas/ProxyErrorResponse"}
    return {"description": about, "content": {"application/json": {"schema": schema}}}
