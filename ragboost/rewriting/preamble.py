"""Hash the text that the model reads before the first document of a payload.

Requests share a prefix only behind the same text. Knows the client's bytes, which are hashed
already. Does not know chat templates: unequal bytes count as unequal text.
"""

from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import Any

from ragboost.formats import Format, Found
from ragboost.rewriting.json_body import JsonBody
from ragboost.wires.body import content_of, is_instruction, question_part
from ragboost.wires.registry import INSTRUCTION_ROLES, INSTRUCTIONS, TOOLS


def preamble(body: JsonBody, shape: Format, found: Found, *, first: int | None = None) -> str:
    """Hash what precedes the first document of a payload.

    Args:
        body: of the request.
        shape: of its documents.
        found: its documents.
        first: index of the earliest message that carries documents, for documents inside messages;
            None: that of the question.

    Returns:
        16 hex digits; empty if nothing precedes the documents.
    """
    if shape.in_place:
        return _hash(_before(body, found.path, found.start))
    if not shape.in_message:
        return _hash(_before_messages(body))
    message = found.message if first is None else first
    if message is None:
        return ""
    path, content = content_of(body.fields, message)
    return _hash(_before(body, path, question_part(content)))


def _before(body: JsonBody, path: tuple[str | int, ...], start: int) -> list[bytes]:
    """Return what the model reads before offset `start` of the value at a path."""
    parts = _fields(body, TOOLS if is_instruction(path) else TOOLS + INSTRUCTIONS)
    value: Any = body.fields
    for depth, step in enumerate(path):
        if isinstance(step, int) and step:
            if depth == 1 and path[0] == body.list_name:
                parts += body.message_digests[:step]
            else:
                parts.append(body.encode_bytes(value[:step]))
        value = value[step]
    if start:
        parts.append(body.encode_bytes(value[:start]))
    return parts


def _before_messages(body: JsonBody) -> list[bytes]:
    """Return what a chat template may render before the documents: tools and instructions."""
    parts = _fields(body, (*TOOLS, *INSTRUCTIONS, "chat_template"))
    messages = body.fields.get(body.list_name) or ()
    for message, digest in zip(messages, body.message_digests, strict=False):
        if not isinstance(message, dict) or message.get("role") not in INSTRUCTION_ROLES:
            break
        parts.append(digest)
    return parts


def _fields(body: JsonBody, names: Iterable[str]) -> list[bytes]:
    fields = body.fields
    return [body.field_bytes(name) if fields.get(name) else b"" for name in names]


def _hash(parts: Sequence[bytes]) -> str:
    if not any(parts):
        return ""
    return sha256(b"".join([b"%d %b" % (len(part), part) for part in parts])).hexdigest()[:16]
