"""Read OpenAI request bodies: validate the fields that the engine uses, reject those that it cannot
honour, ignore the rest.

Knows JSON shapes. Does not know the engine or HTTP. An invalid field raises `RequestError`, which
names it.
"""

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from ragboost.engine.runtime.sampling import SamplingParams
from ragboost.errors import RequestError

Body = Mapping[str, Any]

# Fields that would change the answer and are not implemented, with their neutral values. Any other
# value is rejected rather than silently ignored.
_UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "prompt_logprobs": (),
    "echo": (False,),
    "suffix": ("",),
    "logit_bias": ({},),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "response_format": ({"type": "text"},),
    "audio": (),
    "modalities": (["text"],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "top_k": (0, -1),
    "min_p": (0,),
    "min_tokens": (0,),
    "length_penalty": (1,),
    "use_beam_search": (False,),
    "stop_token_ids": ([],),
    "include_stop_str_in_output": (False,),
    "bad_words": ([],),
    "allowed_token_ids": (),
    "truncate_prompt_tokens": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "structured_outputs": (),
}
_REFUSED_TEMPLATE_NAMES = frozenset(
    {"chat_template", "conversation", "tokenize", "tokenizer_kwargs"}
)
_MAX_STOPS = 64


class ApiError(RequestError):
    """An error response with a status and code of its own."""

    def __init__(self, message: str, *, status: int, code: str, param: str | None = None) -> None:
        super().__init__(message, param=param)
        self.status = status
        self.code = code


class Fields(BaseModel):
    """Fields of a request object; null counts as absent."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _drop_null(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        return {name: value for name, value in given.items() if value is not None}


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Text = Annotated[str, Field(min_length=1)]


class GenerationRequest(Fields):
    """Generation fields of chat and text completions; unknown fields are ignored."""

    model_config = ConfigDict(extra="ignore")

    max_tokens: int | None = Field(None, gt=0, description="Maximum number of generated tokens.")
    max_completion_tokens: int | None = Field(
        None, gt=0, description="The same; takes precedence over `max_tokens`."
    )
    temperature: float = Field(1.0, ge=0, description="Sampling temperature; 0 is greedy.")
    top_p: float = Field(1.0, gt=0, le=1, description="Probability mass to sample from.")
    seed: int | None = Field(None, description="Makes sampling repeatable.")
    ignore_eos: bool = Field(False, description="Continue after an end-of-sequence token.")
    stop: Annotated[
        list[Text],
        Field(max_length=_MAX_STOPS),
        BeforeValidator(_as_list, json_schema_input_type=str | list[str]),
    ] = Field([], description="Strings that end the answer.")
    stream: bool = Field(False, description="Answer with server-sent events, one per token.")
    stream_options: dict[str, Any] = Field(
        {}, description="`include_usage`: end the stream with an event that has the usage."
    )
    cache_salt: str | None = Field(None, min_length=1, description="Prefix cache namespace.")
    session_id: str | None = Field(None, min_length=1, description="Copied to the cache events.")

    @property
    def num_tokens(self) -> int | None:
        """Requested number of tokens; None if the body does not say."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def include_usage(self) -> bool:
        """True if a stream ends with its usage."""
        return bool(self.stream_options.get("include_usage"))

    def sampling(self, max_tokens: int) -> SamplingParams:
        """Return the sampling parameters for a resolved number of tokens."""
        return SamplingParams(
            max_tokens=max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            seed=self.seed,
            ignore_eos=self.ignore_eos,
        )


M = TypeVar("M", bound=Fields)


def read_fields(model: type[M], given: Any, *, name: str = "") -> M:
    """Validate a request object.

    Args:
        model: its fields.
        given: the JSON value.
        name: path of the object in the body; empty for the body.
    """
    try:
        return model.model_validate(given)
    except ValidationError as caught:
        error = caught.errors(include_url=False)[0]
    where = name
    for part in error["loc"]:
        where += f"[{part}]" if isinstance(part, int) else f".{part}" if where else part
    if error["type"] == "extra_forbidden":
        raise RequestError(
            f"{where} is unknown; known are {', '.join(model.model_fields)}", param=where
        )
    expected = "must be an object"
    if error["type"] != "model_type":
        expected = str(error.get("ctx", {}).get("error") or error["msg"])
        expected = expected.replace("Input should be", "must be")
    raise RequestError(f"{where} {expected}, got {_show(error['input'])}", param=where)


def parse_generation(body: Body) -> GenerationRequest:
    """Read the fields that chat and text completions share."""
    for name, neutral in _UNSUPPORTED.items():
        if body.get(name) is not None and body[name] not in neutral:
            raise RequestError(
                f"{name}={body[name]!r} is not supported by the embedded engine; leave it out",
                param=name,
            )
    return read_fields(GenerationRequest, body)


def parse_messages(body: Body) -> list[dict[str, Any]]:
    """Read `messages`; lists of text parts become one string, joined by line breaks."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise RequestError("messages must be a non-empty list", param="messages")
    return [_message(message, f"messages[{i}]") for i, message in enumerate(messages)]


def parse_documents(body: Body) -> list[dict[str, Any]] | None:
    """Read `documents` or `chat_template_kwargs.documents`; None if absent."""
    kwargs = body.get("chat_template_kwargs")
    documents = body.get("documents")
    if documents is None and isinstance(kwargs, dict):
        documents = kwargs.get("documents")
    if documents is None:
        return None
    if not isinstance(documents, list):
        raise RequestError("documents must be a list of objects", param="documents")
    for i, document in enumerate(documents):
        if not isinstance(document, dict):
            raise RequestError(
                f"documents[{i}] must be an object with `text`, got {_show(document)}",
                param=f"documents[{i}]",
            )
    return documents


def parse_template_kwargs(body: Body) -> dict[str, Any]:
    """Read the variables for the chat template: `chat_template_kwargs`, `tools`,
    `add_generation_prompt`, `continue_final_message`."""
    names: dict[str, Any] = {}
    for name, kind, expected in (
        ("chat_template_kwargs", dict, "an object"),
        ("tools", list, "a list"),
        ("add_generation_prompt", bool, "a boolean"),
        ("continue_final_message", bool, "a boolean"),
    ):
        value = body.get(name)
        if value is not None and not isinstance(value, kind):
            raise RequestError(f"{name} must be {expected}, got {_show(value)}", param=name)
        if isinstance(value, dict):
            names |= value
        elif value is not None:
            names[name] = value
    names.pop("documents", None)
    if refused := sorted(_REFUSED_TEMPLATE_NAMES.intersection(names)):
        field = f"chat_template_kwargs.{refused[0]}"
        raise RequestError(f"{field} is not allowed", param=field)
    return names


def parse_prompt(body: Body, *, vocab_size: int) -> str | list[int]:
    """Read the `prompt` of a text completion: a text, token ids, or a list with one of these."""
    prompt = body.get("prompt")
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list):
        if len(prompt) > 1:
            raise RequestError(
                f"prompt holds {len(prompt)} prompts; send one per request", param="prompt"
            )
        prompt = prompt[0]
    if isinstance(prompt, str) and prompt:
        return prompt
    if isinstance(prompt, list) and prompt:
        return parse_token_ids(prompt, "prompt", vocab_size=vocab_size)
    raise RequestError(
        f"prompt must be a non-empty string or list of token ids, got {_show(prompt)}",
        param="prompt",
    )


def parse_token_ids(value: Any, name: str, *, vocab_size: int) -> list[int]:
    """Check that `value` is a list of ids of the vocabulary."""
    if not isinstance(value, list):
        raise RequestError(f"{name} must be a list of token ids", param=name)
    for i, token in enumerate(value):
        if type(token) is not int or not 0 <= token < vocab_size:
            raise RequestError(
                f"{name}[{i}] must be a token id from 0 to {vocab_size - 1}, got {_show(token)}",
                param=f"{name}[{i}]",
            )
    return value


def _message(message: Any, where: str) -> dict[str, Any]:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise RequestError(f"{where} must be an object with a string `role`", param=where)
    content = message.get("content")
    if isinstance(content, list):
        content = "\n".join(_part(part, f"{where}.content[{i}]") for i, part in enumerate(content))
    elif content is None:
        content = ""
    elif not isinstance(content, str):
        raise RequestError(
            f"{where}.content must be a string or a list of text parts, got {_show(content)}",
            param=f"{where}.content",
        )
    return {**message, "content": content}


def _part(part: Any, where: str) -> str:
    text = part.get("text") if isinstance(part, dict) else part
    if not isinstance(text, str):
        kind = part.get("type") if isinstance(part, dict) else type(part).__name__
        raise RequestError(f"{where} must be a text part, got {kind!r}", param=where)
    return text


def _show(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
