"""Read OpenAI request bodies: validate the fields that the engine uses, reject those that it cannot
honour, ignore the rest. An invalid field raises `RequestError`, which names it."""

from typing import Annotated, Any

from pydantic import BeforeValidator, ConfigDict, Field, model_validator

from ragboost.chunk_cache.fields import Fields, Text
from ragboost.engine.runtime.request import SamplingParams
from ragboost.errors import RequestError, json_type, show

# Neutral values of fields that would change the answer and are not implemented. Any other value is
# rejected rather than silently ignored.
_UNSUPPORTED: tuple[tuple[tuple[Any, ...], str], ...] = (
    ((1,), "n best_of repetition_penalty length_penalty"),
    ((0,), "top_logprobs presence_penalty frequency_penalty min_p min_tokens"),
    ((0, -1), "top_k"),
    ((False,), "logprobs echo use_beam_search include_stop_str_in_output"),
    (("",), "suffix"),
    (([], {}), "logit_bias functions stop_token_ids bad_words"),
    (("none", "auto"), "tool_choice function_call"),
    (({"type": "text"},), "response_format"),
    ((["text"],), "modalities"),
    ((), "prompt_logprobs audio allowed_token_ids truncate_prompt_tokens chat_template"),
    ((), "guided_json guided_regex guided_choice guided_grammar structured_outputs"),
)
_MAX_STOPS = 64


class ApiError(RequestError):
    def __init__(
        self,
        message: str,
        *,
        status: int,
        code: str,
        param: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message, param=param)
        self.status = status
        self.code = code
        self.retry_after_s = retry_after_s


class GenerationRequest(Fields):
    """Generation fields of chat and text completions; unknown fields are ignored."""

    model_config = ConfigDict(extra="ignore")

    model: str | None = Field(None, description="Must be the name of the served model.")
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
        BeforeValidator(
            lambda value: [value] if isinstance(value, str) else value,
            json_schema_input_type=str | list[str],
        ),
    ] = Field([], description="Strings that end the answer.")
    stream: bool = Field(False, description="Answer with server-sent events, one per token.")
    stream_options: dict[str, Any] = Field(
        {}, description="`include_usage`: end the stream with an event that has the usage."
    )
    cache_salt: str | None = Field(None, min_length=1, description="Prefix cache namespace.")
    session_id: str | None = Field(None, min_length=1, description="Copied to the cache events.")

    @model_validator(mode="before")
    @classmethod
    def _refuse_unsupported(cls, body: Any) -> Any:
        for neutral, names in _UNSUPPORTED:
            for name in names.split():
                if body.get(name) is not None and body[name] not in neutral:
                    raise RequestError(
                        f"{name}={body[name]!r} is not supported by the embedded engine; "
                        "leave it out",
                        param=name,
                    )
        return body

    @property
    def num_tokens(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options.get("include_usage"))

    def sampling(self, max_tokens: int) -> SamplingParams:
        names = ("temperature", "top_p", "seed", "ignore_eos")
        return SamplingParams(max_tokens, **{name: getattr(self, name) for name in names})


def check_token_ids(ids: list[Any], name: str, *, vocab_size: int) -> list[int]:
    for i, token in enumerate(ids):
        if type(token) is not int or not 0 <= token < vocab_size:
            raise RequestError(
                f"{name}[{i}] must be a token id from 0 to {vocab_size - 1}, got {show(token)}",
                param=f"{name}[{i}]",
            )
    return ids


def read_messages(messages: Any) -> list[dict[str, Any]]:
    """Read `messages`; lists of text parts become one string, joined by line breaks."""
    if not isinstance(messages, list) or not messages:
        raise RequestError("messages must be a non-empty list", param="messages")
    return [_message(message, f"messages[{i}]") for i, message in enumerate(messages)]


def read_prompt(prompt: Any) -> str | list[Any]:
    """Read the `prompt` of a text completion: a text, token ids, or a list with one of these."""
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list):
        if len(prompt) > 1:
            raise RequestError(
                f"prompt holds {len(prompt)} prompts; send one per request", param="prompt"
            )
        prompt = prompt[0]
    if isinstance(prompt, str | list) and prompt:
        return prompt
    raise RequestError(
        f"prompt must be a non-empty string or list of token ids, got {show(prompt)}",
        param="prompt",
    )


def _message(message: Any, where: str) -> dict[str, Any]:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise RequestError(f"{where} must be an object with a string `role`", param=where)
    content = "" if message.get("content") is None else message["content"]
    if isinstance(content, list):
        content = "\n".join(_part(part, f"{where}.content[{i}]") for i, part in enumerate(content))
    elif not isinstance(content, str):
        raise RequestError(
            f"{where}.content must be a string or a list of text parts, got {show(content)}",
            param=f"{where}.content",
        )
    return {**message, "content": content}


def _part(part: Any, where: str) -> str:
    text = part.get("text") if isinstance(part, dict) else part
    if not isinstance(text, str):
        kind = part.get("type") if isinstance(part, dict) else json_type(part)
        raise RequestError(f"{where} must be a text part, got {kind!r}", param=where)
    return text
