"""Read an answer from the bytes of its response: its text, length, end and log-probabilities.

Knows chat and text completions, whole and as a stream. Does not know requests.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

MAX_BYTES = 1 << 20
# Parts of a message that are no text, or that an engine has cut out of the text.
_PARTS = ("tool_calls", "function_call", "refusal", "reasoning", "reasoning_content", "audio")


class UncheckedError(Exception):
    """An answer cannot be checked; the text is the reason, a label of metrics."""


class GivenAnswer(NamedTuple):
    text: str
    num_tokens: int
    has_ended: bool  # by itself; otherwise at the limit of tokens
    logprobs: Sequence[float]  # of its tokens, if the client asked for them; else empty


class _Token(msgspec.Struct):
    logprob: float


class _Logprobs(msgspec.Struct):
    content: list[_Token] | None = None  # of a chat
    token_logprobs: list[float | None] | None = None  # of a text completion


class _Choice(msgspec.Struct):
    index: int = 0
    message: dict[str, Any] | None = None
    delta: dict[str, Any] | None = None
    text: str | None = None
    logprobs: _Logprobs | None = None
    finish_reason: str | None = None


class _Usage(msgspec.Struct):
    completion_tokens: int = 0


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None


class AnswerTap:
    """Keeps the bytes of a response, up to a limit."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> None:
        self._size += len(chunk)
        if self._size <= MAX_BYTES:
            self._parts.append(chunk)

    def read(self) -> GivenAnswer:
        """Return the answer of the complete response; `UncheckedError` if there is none to check,
        or its bytes were too many."""
        if self._size > MAX_BYTES:
            raise UncheckedError("too_long")
        try:
            events = _events(b"".join(self._parts))
        except msgspec.MsgspecError:
            raise UncheckedError("not_text") from None
        choices = [choice for event in events for choice in event.choices]
        if any(choice.index for choice in choices):
            raise UncheckedError("several_choices")
        text = "".join(map(_text, choices))
        num_tokens = max(
            (event.usage.completion_tokens for event in events if event.usage), default=0
        )
        finish = [choice.finish_reason for choice in choices if choice.finish_reason]
        if finish not in (["stop"], ["length"]) or not text or not num_tokens:
            raise UncheckedError("not_text")
        logprobs = [value for choice in choices for value in _logprobs(choice.logprobs)]
        return GivenAnswer(text, num_tokens, finish == ["stop"], logprobs)


def _events(data: bytes) -> list[_Event]:
    lines = [data]
    if not data.lstrip().startswith(b"{"):
        values = [line[5:].strip() for line in data.splitlines() if line.startswith(b"data:")]
        lines = [value for value in values if value.startswith(b"{")]
    return [msgspec.json.decode(line, type=_Event) for line in lines]


def _text(choice: _Choice) -> str:
    message = choice.message or choice.delta or {"content": choice.text}
    content = message.get("content")
    if any(message.get(name) for name in _PARTS) or not isinstance(content, str | None):
        raise UncheckedError("not_text")
    return content or ""


def _logprobs(found: _Logprobs | None) -> list[float]:
    if found is None:
        return []
    if found.content is not None:
        return [token.logprob for token in found.content]
    return [value for value in found.token_logprobs or () if value is not None]
