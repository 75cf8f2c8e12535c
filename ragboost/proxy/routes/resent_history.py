"""Notice clients of the session API that send the history of a session again.

Knows messages. Does not know bodies or stores.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from ragboost.errors import SessionConflictError
from ragboost.requests.json_body import decode_message
from ragboost.requests.wires.openai_chat import OPENAI_CHAT

_MAX_OVERLAPS = 16  # with the session that are looked at


class _Digest(NamedTuple):
    """The part of a message that a client leaves as it is when it sends it again."""

    role: Any
    text: bytes
    calls: tuple[Any, ...]


def refuse_resent(new: Sequence[Any], history: Sequence[bytes]) -> None:
    """Refuse new messages that begin with the latest ones of the session: a client of this API that
    keeps a history of its own would send every turn twice.

    Raises:
        SessionConflictError: names the messages that are new.
    """
    given = [(at, message) for at, message in enumerate(new) if not _is_instruction(message)]
    if not any(message["role"] == "assistant" for _, message in given):
        return
    decoded = [decode_message(msgspec.Raw(message)) for message in history]
    past = [_digest(message) for message in decoded if not _is_instruction(message)]
    digests = [_digest(message) for _, message in given]
    for num in _possible_overlaps(digests, past):
        if _is_same(digests[:num], past[-num:], is_whole=num == len(past)):
            first = given[num - 1][0] + 1
            raise SessionConflictError(
                f"messages[:{first}] are in the session already, which keeps its history: send "
                f"messages[{first}:] only, or whole histories to /v1/chat/completions",
                param="messages",
            )


def _possible_overlaps(given: Sequence[_Digest], past: Sequence[_Digest]) -> list[int]:
    """Return the numbers of leading new messages that may be the latest ones of the session,
    the largest first."""
    if not past:
        return []
    ends = [at for at, message in enumerate(given[: len(past)], 1) if message == past[-1]]
    return [*([len(past)] if len(given) >= len(past) else []), *ends[: -_MAX_OVERLAPS - 1 : -1]]


def _is_same(given: Sequence[_Digest], past: Sequence[_Digest], *, is_whole: bool) -> bool:
    """Compare messages; those of the assistant may be edited if all others of a history are not."""
    return all(
        a == b or (is_whole and a.role == b.role == "assistant")
        for a, b in zip(given, past, strict=True)
    )


def _digest(message: Mapping[str, Any]) -> _Digest:
    content, calls = message.get("content"), message.get("tool_calls")
    parts = content if isinstance(content, list) else [content]
    texts = [part.get("text") if isinstance(part, dict) else part for part in parts]
    text = json.dumps([t for t in texts if t not in (None, "")]).encode()
    calls = calls if isinstance(calls, list) else []
    ids = [str(call.get("id")) for call in calls if isinstance(call, dict)]
    return _Digest(message.get("role"), hashlib.sha256(text).digest(), tuple(ids))


def _is_instruction(message: Mapping[str, Any]) -> bool:
    return message.get("role") in OPENAI_CHAT.instruction_roles
