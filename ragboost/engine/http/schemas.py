"""Request objects of the engine's HTTP API, with the `ragboost` object: reuse and chunks
(`chunk_cache.core.request`), graphs (`graph.request`). An invalid or unknown field raises
`RequestError`, which names it."""

from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

from pydantic import (
    AfterValidator,
    ConfigDict,
    Field,
    PlainValidator,
    SkipValidation,
    model_validator,
)

from ragboost.chunk_cache.core.request import (
    FIELD,
    ChunkPosition,
    EngineChunkRequest,
    ReuseDefaults,
    ReuseFields,
    ReuseOptions,
)
from ragboost.chunk_cache.fields import Fields, read_fields
from ragboost.engine.http.protocol import GenerationRequest, read_messages, read_prompt
from ragboost.errors import RequestError
from ragboost.graph.request import GraphFields


class RagboostFields(ReuseFields):
    """Fields of the engine beyond OpenAI's."""

    model_config = ConfigDict(extra="forbid")

    graph: GraphFields | None = None


class Extension(NamedTuple):
    positions: Sequence[ChunkPosition] = ()  # of its chunks
    # What becomes of them, whose places are still to be found; None: nothing.
    chunks: EngineChunkRequest | None = None
    graph: GraphFields | None = None


def parse_extension(value: Any, defaults: ReuseDefaults, *, is_chat: bool) -> Extension:
    fields = read_fields(RagboostFields, {} if value is None else value, name=FIELD)
    if fields.graph is not None:
        if not is_chat:
            raise RequestError(f"{FIELD}.graph needs messages", param=f"{FIELD}.graph")
        if fields.chunks:
            raise RequestError(
                f"{FIELD}.graph and {FIELD}.chunks exclude each other", param=f"{FIELD}.chunks"
            )
        return Extension(graph=fields.graph)
    positions = fields.positions(is_chat=is_chat)
    options = fields.options(defaults)
    is_stored = bool(positions) and fields.is_exact and defaults.refusal is None
    if options is None and not is_stored:
        return Extension(positions)
    policy, ratio = options or ReuseOptions()
    chunks = EngineChunkRequest(
        policy=policy,
        ratio=ratio,
        tenant=fields.tenant,
        reason=None if options else "reuse_off",
        measure=fields.measure,
        exact_chunks=fields.exact_chunks,
    )
    return Extension(positions, chunks)


def check_inside(stop: int, length: int) -> None:
    if stop > length:
        raise RequestError(
            f"{FIELD}.chunks ends at {stop}, after the end of its text at {length}",
            param=f"{FIELD}.chunks",
        )


Objects = list[dict[str, Any]]

_REFUSED_TEMPLATE_NAMES = frozenset(
    {"chat_template", "conversation", "tokenize", "tokenizer_kwargs"}
)


def _check_names(names: dict[str, Any]) -> dict[str, Any]:
    if refused := sorted(_REFUSED_TEMPLATE_NAMES.intersection(names)):
        field = f"chat_template_kwargs.{refused[0]}"
        raise RequestError(f"{field} is not allowed", param=field)
    return names


class ChatFields(Fields):
    """A conversation and what its chat template reads; unknown fields are ignored."""

    model_config = ConfigDict(extra="ignore")

    messages: Annotated[Objects, PlainValidator(read_messages, json_schema_input_type=Objects)] = (
        Field(description="Each with `role` and `content`: text or text parts.")
    )
    documents: Objects | None = Field(None, description="For the chat template.")
    chat_template_kwargs: Annotated[dict[str, Any], AfterValidator(_check_names)] = Field(
        {}, description="Further variables of the chat template."
    )
    tools: Objects | None = Field(None, description="For the chat template.")
    add_generation_prompt: bool | None = Field(
        None, description="Whether an answer begins; default: unless the last message continues."
    )
    continue_final_message: bool | None = Field(
        None, description="Continue the last message instead of answering it."
    )

    @model_validator(mode="before")
    @classmethod
    def _find_documents(cls, body: Any) -> Any:
        names = body.get("chat_template_kwargs")
        if isinstance(names, dict) and body.get("documents") is None:
            return {**body, "documents": names.get("documents")}
        return body

    @property
    def template_kwargs(self) -> dict[str, Any]:
        names = ("tools", "add_generation_prompt", "continue_final_message")
        fields = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        variables = {**self.chat_template_kwargs, **fields}
        variables.pop("documents", None)
        return variables


class ChatCompletionRequest(ChatFields, GenerationRequest):
    """Body of a chat completion; unknown fields are ignored."""

    ragboost: SkipValidation[RagboostFields | None] = None  # see `parse_extension`


class CompletionRequest(GenerationRequest):
    """Body of a text completion; unknown fields are ignored."""

    max_tokens: int | None = Field(16, gt=0, description="Maximum number of generated tokens.")
    prompt: Annotated[
        str | list[Any],
        PlainValidator(
            read_prompt, json_schema_input_type=str | list[int] | list[str] | list[list[int]]
        ),
    ] = Field(description="Text or token ids, or a list with one of these.")
    ragboost: SkipValidation[RagboostFields | None] = None  # see `parse_extension`
