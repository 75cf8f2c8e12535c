"""Divide a request into the blocks that hosted APIs cache up to, each with a hash of its prefix.

Tools come first, then the system prompt, then the messages.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from ragboost.requests.json_body import decode_message
from ragboost.requests.wires.body import has_cache_mark, message_field
from ragboost.requests.wires.providers import UNMARKED_TYPES
from ragboost.requests.wires.registry import ANY, CONTENTS


class BlockPlace(NamedTuple):
    field: str
    at: int | None = None  # index in that list; None where the field is one text
    part: int | None = None  # index in the content of a message; None where that is one text


class PromptBlock(NamedTuple):
    place: BlockPlace
    key: bytes  # hash of everything up to its end
    end_bytes: int  # of everything up to its end, about
    kind: str  # blocks of one kind return with about the same probability
    can_end: bool  # a cache breakpoint may be set on it


class _Piece(NamedTuple):
    place: BlockPlace
    text: str
    kind: str
    can_end: bool


def prompt_blocks(fields: Mapping[str, Any], *, seed: bytes) -> list[PromptBlock]:
    """Return the blocks of a body with a list of messages; none of another one.

    None, either, where the caller has set a breakpoint. Messages may be encoded; `seed` keeps equal
    prompts of different tenants apart.
    """
    field = message_field(fields)
    messages = fields.get(field)
    if not isinstance(messages, list) or not messages or has_cache_mark(fields):
        return []
    decoded = [decode_message(message) for message in messages]
    content = CONTENTS[field]
    above = [part for name in (*ANY.tools, *ANY.instructions) for part in _list(fields.get(name))]
    parts = [
        part
        for message in decoded
        if isinstance(message, dict)
        for part in _list(message.get(content))
    ]
    if any(map(has_cache_mark, [*above, *decoded, *parts])):
        return []
    blocks, key, end = [], seed, 0
    for piece in _pieces(fields, field, decoded):
        data = piece.text.encode("utf-8", "surrogatepass")
        key = hashlib.sha256(key + data).digest()[:16]
        end += len(data)
        blocks.append(PromptBlock(piece.place, key, end, piece.kind, piece.can_end))
    return blocks


def _pieces(fields: Mapping[str, Any], field: str, messages: list[Any]) -> Iterator[_Piece]:
    for name in ANY.tools:
        for at, tool in enumerate(_list(fields.get(name))):
            yield _Piece(BlockPlace(name, at), json.dumps(tool), "tools", isinstance(tool, dict))
    for name in ANY.instructions:
        system = fields.get(name)
        if isinstance(system, str) and system:
            yield _Piece(BlockPlace(name), _as_block(system), "system", True)
        for at, block in enumerate(_list(system)):
            yield _Piece(BlockPlace(name, at), json.dumps(block), "system", _can_end(block))
    num_user = 0
    for at, message in enumerate(messages):
        if not isinstance(message, dict):
            return
        num_user += message.get("role") == "user"
        is_last = at == len(messages) - 1
        yield from _message_pieces(field, at, message, turn=num_user, is_last=is_last)


def _message_pieces(
    field: str, at: int, message: dict[str, Any], *, turn: int, is_last: bool
) -> Iterator[_Piece]:
    others = dict(message)
    role, content = str(others.pop("role", None)), others.pop(CONTENTS[field], None)
    parts = [content] if isinstance(content, str) else _list(content)
    if others or not parts:
        yield _Piece(BlockPlace(field, at, -1), role + json.dumps(others), "rest", False)
    for index, part in enumerate(parts):
        is_text = isinstance(part, str)
        text = _as_block(part) if is_text else json.dumps(part)
        ends = index == len(parts) - 1
        if role in ANY.instruction_roles:
            kind = "system"
        elif ends:
            kind = "history" if not is_last else "first end" if turn <= 1 else "end"
        else:
            kind = f"block {min(index.bit_length(), 4)}" if turn <= 1 else "inside"
        can_end = bool(part) if isinstance(content, str) else _can_end(part)
        place = BlockPlace(field, at, None if isinstance(content, str) else index)
        yield _Piece(place, role + text, kind, can_end and role not in ANY.tool_roles)


def _as_block(text: str) -> str:
    return json.dumps({"type": "text", "text": text})


def _can_end(block: Any) -> bool:
    if not isinstance(block, dict) or block.get("type") in UNMARKED_TYPES:
        return False
    return block.get("type") != "text" or bool(block.get("text"))


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
