"""Name the text before the first document of a payload, as the backend reads it.

Only requests with the same name share the prefixes of an index.
"""

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

from ragboost.requests.formats import Format, FoundDocuments
from ragboost.requests.json_body import JsonBody
from ragboost.requests.wires.body import (
    Path,
    content_of,
    is_instruction,
    num_instructions,
    question_part,
)
from ragboost.requests.wires.cache_marks import may_have_cache_mark
from ragboost.requests.wires.normal_form import (
    EngineKind,
    normal_instructions,
    normal_message,
    normal_tool,
)
from ragboost.requests.wires.registry import ANY

_MAX_NORMAL = 8  # messages that are brought into the form in which the backend reads them


def prompt_prefix(
    body: JsonBody,
    shape: Format,
    found: FoundDocuments,
    *,
    first: int | None = None,
    kind: EngineKind = "",
) -> str:
    """Hash what precedes the first document of a payload, as the backend reads it.

    Args:
        first: index of the earliest message that carries documents, for documents inside messages;
            None: that of the question.
        kind: of the backend.

    Returns:
        16 hex digits; empty if nothing precedes the documents.
    """
    if shape.in_place:
        return _name_of(_before(body, found.path, found.start, kind))
    if not shape.in_message:
        return _name_of(_before_messages(body, kind))
    message = found.message if first is None else first
    if message is None:
        return ""
    path, content = content_of(body.fields, message)
    return _name_of(_before(body, path, question_part(content), kind))


def _before(body: JsonBody, path: Path, start: int, kind: EngineKind) -> list[bytes]:
    names = ANY.tools if is_instruction(path) else ANY.tools + ANY.instructions
    parts = _fields(body, names, kind)
    value: Any = body.fields
    for depth, step in enumerate(path):
        if isinstance(step, int) and step:
            if depth == 1 and path[0] == body.list_name:
                parts += _digests(body, step, kind)
            elif depth == 1 and is_instruction(path):
                parts.append(body.encode_bytes(normal_instructions(value[:step], kind)))
            else:
                parts.append(body.encode_bytes(normal_message(value[:step], kind)))
        value = value[step]
    if start:
        parts.append(body.encode_bytes(normal_message(value[:start], kind)))
    return parts


def _before_messages(body: JsonBody, kind: EngineKind) -> list[bytes]:
    """Return what a chat template may render before the documents: tools and instructions."""
    parts = _fields(body, (*ANY.tools, *ANY.instructions), kind)
    parts.append(body.field_bytes("chat_template"))
    num = num_instructions(body.fields.get(body.list_name) or ())
    return parts + _digests(body, num, kind)


def _fields(body: JsonBody, names: Iterable[str], kind: EngineKind) -> list[bytes]:
    parts = []
    for name in names:
        value, raw = body.fields.get(name), body.field_bytes(name)
        if value and name in ANY.instructions:
            raw = body.encode_bytes(normal_instructions(value, kind))
        elif isinstance(value, list) and may_have_cache_mark(raw):
            raw = body.encode_bytes([normal_tool(tool, kind) for tool in value])
        parts.append(raw if value else b"")
    return parts


def _digests(body: JsonBody, num: int, kind: EngineKind) -> list[bytes]:
    """Return digests of the first messages. A long history is its conversation's own, and nobody
    else's documents stand behind it: beyond the first messages, the client's bytes will do."""
    if not num:
        return []
    first = body.fields[body.list_name][: min(num, _MAX_NORMAL)]
    normal = [body.encode_bytes(normal_message(message, kind)) for message in first]
    digests = [hashlib.sha256(data).digest() for data in normal]
    return digests + body.message_digests[_MAX_NORMAL:num] if num > _MAX_NORMAL else digests


def _name_of(parts: Sequence[bytes]) -> str:
    if not any(parts):
        return ""
    joined = b"".join([b"%d %b" % (len(part), part) for part in parts])
    return hashlib.sha256(joined).hexdigest()[:16]
