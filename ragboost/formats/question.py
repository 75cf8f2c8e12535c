"""The user's question in a body: find it and replace it.

The question is the last text of the last user message, or the `prompt`.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple


class QuestionText(NamedTuple):
    """A question and the index of its message; None for the `prompt`."""

    text: str
    message: int | None


def find_question(body: Mapping[str, Any]) -> QuestionText | None:
    """Find the question; None if there is none in a supported shape."""
    if "messages" not in body:
        prompt = body.get("prompt")
        return QuestionText(prompt, None) if isinstance(prompt, str) else None
    messages = body["messages"]
    if not isinstance(messages, list):
        return None
    for at in range(len(messages) - 1, -1, -1):
        message = messages[at]
        if isinstance(message, dict) and message.get("role") == "user":
            text = _content_text(message.get("content"))
            return None if text is None else QuestionText(text, at)
    return None


def replace_question(
    body: Mapping[str, Any], question: str, *, message: int | None
) -> dict[str, Any]:
    """Return a body with another question that shares all other messages and fields."""
    if message is None:
        return {**body, "prompt": question}
    messages = list(body["messages"])
    old = messages[message]
    messages[message] = {**old, "content": _with_text(old["content"], question)}
    return {**body, "messages": messages}


def question_part(content: Any) -> int:
    """Return the index of the content part before which documents are inserted; 0 for a text."""
    return (_last_text(content) or 0) if isinstance(content, list) else 0


def _content_text(content: Any) -> str | None:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return None
    at = _last_text(content)
    return "" if at is None else str(content[at]["text"])


def _with_text(content: Any, text: str) -> Any:
    if isinstance(content, str):
        return text
    at = _last_text(content)
    if at is None:  # only images or sound: the text goes first
        return [{"type": "text", "text": text}, *content]
    return [*content[:at], {**content[at], "text": text}, *content[at + 1 :]]


def _last_text(parts: list[Any]) -> int | None:
    for at in range(len(parts) - 1, -1, -1):
        part = parts[at]
        if isinstance(part, dict) and isinstance(part.get("text"), str):
            return at
    return None
