"""Name the text that the model reads before the first document of a payload.

Requests share a prefix only behind the same text. Knows the client's bytes, which are hashed
already; does not know chat templates, so that unequal bytes count as unequal text.
"""

from hashlib import sha256

from ragboost.formats.question import question_part
from ragboost.formats.slots import CONSTANT_ROLES
from ragboost.rewriting.body import JsonBody

_ABOVE = ("tools", "functions", "system")


def preamble_of_message(payload: JsonBody, message: int | None) -> str:
    """Hash what stands before documents that are put to the question of a message.

    Args:
        payload: the body.
        message: index of the message; None: they are put to the front of `prompt`.

    Returns:
        Empty if nothing stands before them.
    """
    if message is None:
        return ""
    parts = [payload.field(name) for name in _ABOVE] + payload.message_digests[:message]
    content = payload.body["messages"][message].get("content")
    at = question_part(content)
    if at:
        parts.append(bytes(payload.encode_value(content[:at])))
    return _hash(parts)


def preamble_of_field(payload: JsonBody) -> str:
    """Hash what may stand before documents that a chat template renders: tools and instructions.

    Returns:
        Empty if there are none.
    """
    parts = [payload.field(name) for name in (*_ABOVE, "chat_template")]
    messages = payload.body.get("messages")
    for message, digest in zip(messages or (), payload.message_digests, strict=False):
        if not isinstance(message, dict) or message.get("role") not in CONSTANT_ROLES:
            break
        parts.append(digest)
    return _hash(parts)


def _hash(parts: list[bytes]) -> str:
    if not any(parts):
        return ""
    digest = sha256()
    for part in parts:
        digest.update(b"%d " % len(part))
        digest.update(part)
    return digest.hexdigest()[:16]
