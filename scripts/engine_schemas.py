"""The bodies and responses of the embedded engine's routes, for its reference page and tests."""

from typing import Any

from pydantic import BaseModel, Field
from pydantic.json_schema import models_json_schema

from ragboost.engine.http.schemas import ChatCompletionRequest, CompletionRequest, Objects


class TokenizeRequest(BaseModel):
    """Body with a prompt, or the messages and documents of a chat request."""

    prompt: str | None = None
    messages: Objects | None = None
    documents: Objects | None = None
    add_special_tokens: bool = True


class CompletionUsage(BaseModel):
    """Token counts of a completion."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: dict[str, int] = Field(
        description="`cached_tokens`: prompt tokens served from exact cached KV."
    )
    ragboost: dict[str, int] | None = Field(
        None,
        description="With chunk reuse or a graph: `exact`, `reused`, `recomputed` and `computed`, "
        "which add up to `prompt_tokens`.",
    )


class Completion(BaseModel):
    """OpenAI's completion object; with `stream`, each event has one with a piece of the text."""

    id: str
    object: str
    created: int
    model: str
    choices: Objects
    usage: CompletionUsage


class TokenizeResponse(BaseModel):
    """Token ids of a text."""

    count: int
    max_model_len: int
    tokens: list[int]


class ModelCard(BaseModel):
    """The served model."""

    id: str
    object: str = "model"
    created: int = 0
    owned_by: str = "ragboost"
    max_model_len: int


class ModelList(BaseModel):
    """OpenAI's list of models."""

    object: str = "list"
    data: list[ModelCard]


class EventEndpoint(BaseModel):
    """Addresses of published cache events."""

    publisher: str = "zmq"
    endpoint: str
    replay_endpoint: str | None
    topic: str


class ChunkReuseInfo(BaseModel):
    """Chunk reuse of this engine."""

    is_possible: bool
    refusal: str | None = Field(description="Why chunks cannot be reused.")
    default: str = Field(description="`approx` or `exact`, for requests that do not say.")
    policy: str
    ratio: float
    policies: list[str]
    graphs: bool = Field(description="`ragboost.graph` is read; vLLM and SGLang do not.")


class ErrorDetail(BaseModel):
    """Details of an error."""

    message: str
    type: str
    param: str | None = Field(description="The invalid field.")
    code: str


class ErrorResponse(BaseModel):
    """OpenAI's error object."""

    error: ErrorDetail


# By path: the body, and the response.
BODIES: dict[str, type[BaseModel]] = {
    "/v1/chat/completions": ChatCompletionRequest,
    "/v1/completions": CompletionRequest,
    "/tokenize": TokenizeRequest,
}
RESPONSES: dict[str, type[BaseModel]] = {
    "/v1/chat/completions": Completion,
    "/v1/completions": Completion,
    "/v1/models": ModelList,
    "/tokenize": TokenizeResponse,
    "/kv_event_sources": EventEndpoint,
    "/chunk_reuse": ChunkReuseInfo,
}


def schemas() -> dict[str, Any]:
    """Return the JSON schemas of all objects by name."""
    models: list[type[BaseModel]] = [*RESPONSES.values(), ErrorResponse, *BODIES.values()]
    _, schema = models_json_schema([(model, "validation") for model in models])
    return dict(schema["$defs"])
