"""The OpenAPI document of the proxy's routes, for its reference page."""

from collections.abc import Iterable
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from ragboost.engine_hooks.reports import CONTENT_TYPE
from ragboost.proxy.app import create_app
from ragboost.proxy.routes.schemas import NewSession, SessionQuery
from ragboost.wires.registry import WIRES
from scripts import proxy_schemas as schemas

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
        "reuse": {"type": "object", "description": "Chunk reuse, for the embedded engine."},
        "graph": {"type": "object", "description": "Graph objects, for the embedded engine."},
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
    "429": "The waiting room is full.",
    "502": "The backend cannot be reached.",
    "504": "The backend did not respond in time.",
}
_SESSION_ERRORS = {
    "404": "There is no such session.",
    "409": "Another turn is being answered.",
    "410": "A stored turn cannot be decoded.",
    "503": "The store of sessions fails.",
}


class _Operation(NamedTuple):
    """What a route's docstring does not say."""

    tag: str
    response: type[BaseModel] | str | None = None  # its type, or its content type
    body: type[BaseModel] | str | None = None
    errors: tuple[int, ...] = ()
    query: type[BaseModel] | None = None
    status: int = 200


_OPERATIONS = {
    "POST /v1/sessions": _Operation(
        "sessions", schemas.SessionObject, NewSession, errors=(400, 401, 408, 413), status=201
    ),
    "GET /v1/sessions": _Operation(
        "sessions", schemas.SessionPage, errors=(400, 401, 404), query=SessionQuery
    ),
    "GET /v1/sessions/{session_id}": _Operation(
        "sessions", schemas.SessionTranscript, errors=(401, 404, 410)
    ),
    "DELETE /v1/sessions/{session_id}": _Operation(
        "sessions", schemas.DeletedSession, errors=(401, 404)
    ),
    "POST /v1/index/events": _Operation(
        "engine hooks", CONTENT_TYPE, CONTENT_TYPE, errors=(400, 401, 403, 408, 413)
    ),
    "GET /health": _Operation("operations", schemas.Liveness),
    "GET /ready": _Operation("operations", schemas.Readiness),
    "GET /version": _Operation("operations", schemas.VersionInfo),
    "GET /chunk_reuse": _Operation("operations", errors=(404,)),
    "GET /metrics": _Operation("operations", "text/plain"),
    "GET /dashboard": _Operation("dashboard", "text/html"),
    "GET /dashboard/data": _Operation("dashboard", "application/json", errors=(401,)),
}


def proxy_document() -> dict[str, Any]:
    """Return the OpenAPI document of the routes that the proxy answers itself."""
    paths = _completion_paths()
    for route in create_app().routes:
        for method in sorted(getattr(route, "methods", None) or ()):
            found = _OPERATIONS.get(f"{method} {route.path}")  # type: ignore[attr-defined]
            if found is not None:
                path = paths.setdefault(route.path, {})  # type: ignore[attr-defined]
                path[method.lower()] = _own(route.endpoint, found)  # type: ignore[attr-defined]
    paths["/ready"]["get"]["responses"]["503"] = {"content": _content(schemas.Readiness)}
    models = [value for value in vars(schemas).values() if _is_model(value)]
    both: list[tuple[type[BaseModel], Literal["serialization", "validation"]]]
    both = [(model, "serialization") for model in models] + [(NewSession, "validation")]
    _, defined = models_json_schema(both, ref_template="#/components/schemas/{model}")
    return {"paths": paths, "components": {"schemas": {**defined["$defs"], **_SCHEMAS}}}


def _own(endpoint: Any, found: _Operation) -> dict[str, Any]:
    summary, _, description = (endpoint.__doc__ or "").strip().partition("\n\n")
    operation: dict[str, Any] = {
        "tags": [found.tag],
        "summary": summary.rstrip("."),
        "description": " ".join(description.split()),
        "operationId": endpoint.__name__,
        "parameters": [{"name": name, "in": "query"} for name in _fields(found.query)],
        "responses": {str(status): _error("") for status in found.errors},
    }
    if found.body is not None:
        operation["requestBody"] = {"content": _content(found.body)}
    if found.response is not None:
        operation["responses"][str(found.status)] = {"content": _content(found.response)}
    return operation


def _fields(model: type[BaseModel] | None) -> Iterable[str]:
    return () if model is None else model.model_fields


def _content(kind: type[BaseModel] | str) -> dict[str, Any]:
    if isinstance(kind, str):
        return {kind: {"schema": {"type": "object"}}}
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{kind.__name__}"}}}


def _is_model(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, BaseModel) and value is not BaseModel


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
