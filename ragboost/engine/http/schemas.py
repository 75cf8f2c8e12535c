"""Request and response objects of the engine's HTTP API, for its OpenAPI document.

Bodies of requests are read by `protocol` and `extension`, whose models are reused here.
"""

from typing import Any

from pydantic import BaseModel, Field

from ragboost.engine.http.extension import RagboostFields
from ragboost.engine.http.protocol import GenerationRequest

Objects = list[dict[str, Any]]


class ChatCompletionRequest(GenerationRequest):
    """Body of a chat completion; unknown fields are ignored."""

    model: str | None = Field(None, description="Must be the name of the served model.")
    messages: Objects = Field(description="Each with `role` and `content`: text or text parts.")
    documents: Objects | None = Field(None, description="For the chat template.")
    chat_template_kwargs: dict[str, Any] | None = Field(
        None, description="Further variables of the chat template."
    )
    tools: Objects | None = Field(None, description="For the chat template.")
    ragboost: RagboostFields | None = None


class CompletionRequest(GenerationRequest):
    """Body of a text completion; unknown fields are ignored."""

    model: str | None = Field(None, description="Must be the name of the served model.")
    prompt: str | list[int] | list[str] | list[list[int]] = Field(
        description="Text or token ids, or a list with one of these."
    )
    ragboost: RagboostFields | None = None


class TokenizeRequest(BaseModel):
    """Body with a prompt, or the messages and documents of a chat request."""

    prompt: str | None = None
    messages: Objects | None = None
    documents: Objects | None = None
    add_special_tokens: bool = True
    return_token_strs: bool = False


class DetokenizeRequest(BaseModel):
    """Body with token ids."""

    tokens: list[int]


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
        description="With chunk reuse or a graph: `exact_cached_tokens`, `approx_cached_tokens`, "
        "`recomputed_tokens` and `computed_tokens`, which add up to `prompt_tokens`.",
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
    token_strs: list[str] | None


class DetokenizeResponse(BaseModel):
    """Text of token ids."""

    prompt: str


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


class ErrorDetail(BaseModel):
    """Details of an error."""

    message: str
    type: str
    param: str | None = Field(description="The invalid field.")
    code: str


class ErrorResponse(BaseModel):
    """OpenAI's error object."""

    error: ErrorDetail
