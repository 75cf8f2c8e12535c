"""Set cache breakpoints for hosted APIs, where the caller has set none.

OpenAI's `prompt_cache_key` routes requests with the same beginning to the same cache; Anthropic
caches up to a block with `cache_control`. Knows request bodies. Does not know the context index.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Raw

from ragboost.context import Context
from ragboost.formats.content_blocks import has_cache_mark

Style = Literal["none", "openai", "anthropic"]

_KEY = "prompt_cache_key"
_ABOVE = ("tools", "system")
_MARK = {"type": "ephemeral"}


def add_breakpoint(body: Mapping[str, Any], context: Context, *, style: Style) -> Mapping[str, Any]:
    """Return the body with a breakpoint after the leading documents that were sent before.

    A body in which the caller has set a breakpoint of this kind is returned as it is, and so is one
    that has documents and question in one text, which cannot be divided.

    Args:
        body: the rewritten fields.
        context: its documents; those of later turns are not at the front and get no breakpoint.
        style: the API whose breakpoints to set.
    """
    entry = context.index_entry
    if style == "none" or entry is None or not entry.documents:
        return body
    if style == "openai":
        return body if body.get(_KEY) is not None else {**body, _KEY: _key(entry.documents[0])}
    count = entry.num_cached or len(entry.documents)
    return _with_breakpoint(body, context.documents[count - 1].text, query=context.query)


def _key(first: object) -> str:
    """Return one key for all requests with the same first document behind the same text."""
    return "ragboost-" + hashlib.sha256(repr(first).encode()).hexdigest()[:24]


def _with_breakpoint(body: Mapping[str, Any], text: str, *, query: str) -> Mapping[str, Any]:
    messages = body.get("messages")
    if not isinstance(messages, list) or any(_has_mark(body.get(each)) for each in _ABOVE):
        return body
    decoded = [_decoded(message) for message in messages]
    contents = [
        message.get("content") if isinstance(message, dict) else None for message in decoded
    ]
    if any(_has_mark(content) for content in contents) or any(map(has_cache_mark, decoded)):
        return body
    system = _marked(body.get("system"), text, query=query)
    if system is not None:
        return {**body, "system": system}
    for at, content in enumerate(contents):
        marked = _marked(content, text, query=query)
        if marked is not None:
            message = {**decoded[at], "content": marked}
            return {**body, "messages": [*messages[:at], message, *messages[at + 1 :]]}
    return body


def _decoded(message: Any) -> Any:
    """Decode a message; those of the resent history are encoded."""
    return json.loads(bytes(message)) if isinstance(message, Raw) else message


def _has_mark(blocks: Any) -> bool:
    return isinstance(blocks, list) and any(has_cache_mark(block) for block in blocks)


def _marked(blocks: Any, text: str, *, query: str) -> list[Any] | None:
    """Return the blocks with a mark on the last one that holds the text; None if none does."""
    if not isinstance(blocks, list):
        return None
    for at in range(len(blocks) - 1, -1, -1):
        block = blocks[at]
        if (
            isinstance(block, dict)
            and _holds(block, text)
            and not (query and query in _text(block))
        ):
            return [*blocks[:at], {**block, "cache_control": _MARK}, *blocks[at + 1 :]]
    return None


def _holds(block: Mapping[str, Any], text: str) -> bool:
    """Return True if a block is the document, with all its fields, or has it in its text."""
    return json.dumps(block) == text or text in _text(block)


def _text(block: Mapping[str, Any]) -> str:
    value = block.get("text")
    return value if isinstance(value, str) else ""
