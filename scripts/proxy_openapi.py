"""The OpenAPI document of the proxy's routes, for its reference page. Describes the completion
routes, which are plain ASGI for speed."""

from typing import Any

from ragboost.proxy.app import create_app
from ragboost.proxy.routes.schemas import NewSession
from ragboost.requests.wires.registry import WIRES

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
    "NewSession": NewSession.model_json_schema(),
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


def proxy_document() -> dict[str, Any]:
    """Return FastAPI's document with what it does not know, and without its own shape of errors."""
    document = create_app().openapi()
    document["paths"] = {**_completion_paths(), **document["paths"]}
    schemas = document["components"]["schemas"]
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    schemas.update(_SCHEMAS)
    for item in document["paths"].values():
        for operation in item.values():
            operation["responses"].pop("422", None)
    return document


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
