"""Find the texts that a model wrote in a response or in one event of a stream.

Knows the shapes of all APIs. Reasoning and the arguments of tool calls are not among the texts.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from ragboost.requests.wires.body import Path

_MAX_NAME = 64

TextKey = tuple[str, ...]
"""Identifies one text of a stream: a choice, or a block of content."""


class AnswerText(NamedTuple):
    path: Path
    text: str
    key: TextKey | None = None  # of the text that it is a piece of; None: it is whole


def find_texts(answer: Any, *, is_stream: bool = False) -> list[AnswerText]:
    """Return the texts of a response, or of one event of a stream."""
    if not isinstance(answer, dict):
        return []
    texts = list(_of_choices(answer, is_stream=is_stream))
    texts += _of_blocks(answer.get("content"), ("content",))
    texts += _of_items(answer.get("output"), ("output",))
    if isinstance(text := answer.get("output_text"), str):  # the same once more
        texts.append(AnswerText(("output_text",), text))
    if is_stream:
        texts += _of_event(answer)
    return texts


def ended_texts(event: Any) -> list[TextKey]:
    """Return the keys of the texts that end with an event of a stream."""
    if not isinstance(event, dict):
        return []
    kind = event.get("type")
    if kind == "content_block_stop":
        return [("block", _name(event.get("index")))]
    if kind == "response.output_text.done":
        return [_key_of_output(event)]
    return [
        ("choice", _name(choice.get("index")))
        for choice in _list(event.get("choices"))
        if isinstance(choice, dict) and choice.get("finish_reason") is not None
    ]


def assistant_texts(message: Any, path: Path) -> list[AnswerText]:
    """Return the texts of a message if the model wrote it."""
    if not isinstance(message, dict) or message.get("role") != "assistant":
        return []
    return list(_of_content(message.get("content"), (*path, "content")))


def _of_choices(answer: Mapping[str, Any], *, is_stream: bool) -> Iterator[AnswerText]:
    for at, choice in enumerate(_list(answer.get("choices"))):
        if not isinstance(choice, dict):
            continue
        path: Path = ("choices", at)
        key = ("choice", _name(choice.get("index"))) if is_stream else None
        if isinstance(text := choice.get("text"), str):
            yield AnswerText((*path, "text"), text, key)
        if isinstance(message := choice.get("message"), dict):
            yield from _of_content(message.get("content"), (*path, "message", "content"))
        delta = choice.get("delta")
        text = delta.get("content") if isinstance(delta, dict) else None
        if isinstance(text, str):
            yield AnswerText((*path, "delta", "content"), text, key)


def _of_event(event: Mapping[str, Any]) -> Iterator[AnswerText]:
    kind = event.get("type")
    if kind in ("content_block_delta", "content_block_start"):
        name = "delta" if kind == "content_block_delta" else "content_block"
        block = event.get(name)
        if not isinstance(block, dict) or block.get("type") not in ("text", "text_delta"):
            return
        if isinstance(text := block.get("text"), str):
            yield AnswerText((name, "text"), text, ("block", _name(event.get("index"))))
    elif kind == "response.output_text.delta" and isinstance(text := event.get("delta"), str):
        yield AnswerText(("delta",), text, _key_of_output(event))
    elif kind == "response.output_text.done" and isinstance(text := event.get("text"), str):
        yield AnswerText(("text",), text)
    elif kind == "response.content_part.done":
        yield from _of_blocks([event.get("part")], (), name="part")
    elif kind == "response.output_item.done" and isinstance(item := event.get("item"), dict):
        yield from _of_blocks(item.get("content"), ("item", "content"))
    elif isinstance(response := event.get("response"), dict):
        yield from _of_items(response.get("output"), ("response", "output"))


def _of_items(items: Any, path: Path) -> Iterator[AnswerText]:
    for at, item in enumerate(_list(items)):
        if isinstance(item, dict) and item.get("type") == "message":
            yield from _of_blocks(item.get("content"), (*path, at, "content"))


def _of_content(content: Any, path: Path) -> Iterator[AnswerText]:
    if isinstance(content, str):
        yield AnswerText(path, content)
    else:
        yield from _of_blocks(content, path)


def _of_blocks(blocks: Any, path: Path, *, name: str | None = None) -> Iterator[AnswerText]:
    for at, block in enumerate(_list(blocks)):
        is_text = isinstance(block, dict) and block.get("type") in ("text", "output_text")
        if is_text and isinstance(text := block.get("text"), str):
            yield AnswerText((*path, at if name is None else name, "text"), text)


def _key_of_output(event: Mapping[str, Any]) -> TextKey:
    return ("output", _name(event.get("output_index")), _name(event.get("content_index")))


def _name(index: Any) -> str:
    return str(index)[:_MAX_NAME]


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
