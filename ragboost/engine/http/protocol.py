"""Read OpenAI request bodies: check what we use, refuse what we cannot do, ignore the rest.

Knows JSON shapes. Does not know the engine or HTTP.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ragboost.engine.runtime.sampling import SamplingParams
from ragboost.errors import RequestError

Body = Mapping[str, Any]

# Fields that would change the answer and that we do not implement, with the values that ask for
# nothing. Anything else in them is refused rather than silently ignored.
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
}
_TEMPLATE_NAMES_REFUSED = frozenset(
    {"chat_template", "conversation", "tokenize", "tokenizer_kwargs"}
)
_MAX_STOPS = 64


class ApiError(RequestError):
    """A request that gets an error answer other than a plain 400."""

    def __init__(self, message: str, *, status: int, code: str, param: str | None = None) -> None:
        super().__init__(message, param=param)
        self.status = status
        self.code = code


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """What a completion request asks for, apart from its prompt.

    Attributes:
        max_tokens: None where the body does not say.
        stop: strings that end the answer.
        salt: namespace of the prefix cache (`cache_salt`).
        session_id: copied to the cache events.
    """

    max_tokens: int | None
    temperature: float
    top_p: float
    seed: int | None
    ignore_eos: bool
    stop: tuple[str, ...]
    is_stream: bool
    include_usage: bool
    salt: str | None
    session_id: str | None

    def sampling(self, max_tokens: int) -> SamplingParams:
        """The sampling parameters, with the number of tokens decided."""
        return SamplingParams(
            max_tokens=max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            seed=self.seed,
            ignore_eos=self.ignore_eos,
        )


def parse_generation(body: Body, *, session_header: str | None = None) -> GenerationRequest:
    """Read the fields that chat and text completions share.

    Raises:
        RequestError: a field has a bad value, or asks for what the engine cannot do.
    """
    for name, harmless in _UNSUPPORTED.items():
        if body.get(name) is not None and body[name] not in harmless:
            raise RequestError(
                f"{name}={body[name]!r} is not supported by the embedded engine; leave it out",
                param=name,
            )
    options = _read(body, "stream_options", dict, "an object") or {}
    max_tokens = _read(body, "max_completion_tokens", int, "a positive integer", _is_positive)
    if max_tokens is None:
        max_tokens = _read(body, "max_tokens", int, "a positive integer", _is_positive)
    temperature = _number(body, "temperature", "a number from 0 on", lambda x: x >= 0)
    top_p = _number(body, "top_p", "a number in (0, 1]", lambda x: 0 < x <= 1)
    return GenerationRequest(
        max_tokens=max_tokens,
        temperature=1.0 if temperature is None else temperature,
        top_p=1.0 if top_p is None else top_p,
        seed=_read(body, "seed", int, "an integer"),
        ignore_eos=_read(body, "ignore_eos", bool, "a boolean") or False,
        stop=_stop(body),
        is_stream=_read(body, "stream", bool, "a boolean") or False,
        include_usage=bool(options.get("include_usage")),
        salt=_name(body, "cache_salt"),
        session_id=_name(body, "session_id") or session_header or None,
    )


def parse_messages(body: Body) -> list[dict[str, Any]]:
    """Read `messages`; lists of text parts become one string, joined by line breaks.

    Raises:
        RequestError: no messages, a message without a role, content that is not text.
    """
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise RequestError("messages must be a non-empty list", param="messages")
    return [_message(message, f"messages[{i}]") for i, message in enumerate(messages)]


def parse_documents(body: Body) -> list[dict[str, Any]] | None:
    """Read `documents`, or `chat_template_kwargs.documents`; None where there are none.

    Raises:
        RequestError: not a list of objects.
    """
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
    """Read the names for the chat template: `chat_template_kwargs`, `tools`,
    `add_generation_prompt`, `continue_final_message`.

    Raises:
        RequestError: not an object, or a name that would replace the template.
    """
    names = dict(_read(body, "chat_template_kwargs", dict, "an object") or {})
    names.pop("documents", None)
    if refused := sorted(_TEMPLATE_NAMES_REFUSED.intersection(names)):
        raise RequestError(
            f"chat_template_kwargs.{refused[0]} is not allowed",
            param=f"chat_template_kwargs.{refused[0]}",
        )
    for name, kind in (
        ("tools", list),
        ("add_generation_prompt", bool),
        ("continue_final_message", bool),
    ):
        value = _read(body, name, kind, f"a {kind.__name__}")
        if value is not None:
            names[name] = value
    return names


def parse_prompt(body: Body, *, vocab_size: int) -> str | list[int]:
    """Read the `prompt` of a text completion: a text, token ids, or a list of one of these.

    Raises:
        RequestError: no prompt, an empty one, several, or ids outside the vocabulary.
    """
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
    """Check that `value` is a list of ids of the vocabulary.

    Raises:
        RequestError: it is not.
    """
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


def _stop(body: Body) -> tuple[str, ...]:
    stop = body.get("stop")
    listed = [] if stop is None else [stop] if isinstance(stop, str) else stop
    if (
        not isinstance(listed, list)
        or len(listed) > _MAX_STOPS
        or not all(isinstance(text, str) and text for text in listed)
    ):
        raise RequestError(
            f"stop must be a string or at most {_MAX_STOPS} non-empty strings", param="stop"
        )
    return tuple(listed)


def _name(body: Body, name: str) -> str | None:
    value: str | None = _read(body, name, str, "a non-empty string", bool)
    if value is not None and not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise RequestError(f"{name} holds a lone surrogate", param=name) from None
    return value


def _number(body: Body, name: str, expected: str, check: Callable[[float], bool]) -> float | None:
    value = body.get(name)
    if value is None:
        return None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or not check(value):
        raise RequestError(f"{name} must be {expected}, got {_show(value)}", param=name)
    return float(value)


def _is_positive(value: int) -> bool:
    return value > 0


def _read(
    body: Body, name: str, kind: type, expected: str, check: Callable[[Any], bool] | None = None
) -> Any:
    """The value of an optional field; null counts as absent, a boolean is no integer."""
    value = body.get(name)
    if value is None:
        return None
    is_kind = isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
    if not is_kind or (check is not None and not check(value)):
        raise RequestError(f"{name} must be {expected}, got {_show(value)}", param=name)
    return value


def _show(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
