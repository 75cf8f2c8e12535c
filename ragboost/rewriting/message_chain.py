"""Hash every prefix of a list of messages.

The last hash identifies a whole history and changes with any of its messages. Knows messages and
the digests of their bytes. Does not know what is stored under a hash.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

Link = bytes
"""Hash of a list of messages, from which the hash with one more message is made."""


def chain_links(messages: Sequence[bytes], *, seed: bytes = b"") -> list[Link]:
    """Return the link of every prefix of a list of messages.

    Args:
        messages: a digest of each message's bytes.
        seed: whatever must be equal beside the messages.
    """
    links = []
    link = hashlib.sha256(seed).digest()
    for message in messages:
        link = hashlib.sha256(link + message).digest()
        links.append(link)
    return links


def history_links(messages: Sequence[Any], digests: Sequence[bytes], *, scope: bytes) -> list[Link]:
    """Return the link of every prefix of a chat history, as `next_link` continues it.

    An assistant's message counts by what clients keep of it, its text and the ids of its tool
    calls; every other message by its bytes.

    Args:
        messages: decoded.
        digests: hash of the client's bytes of each.
        scope: model, cache salt and credentials: two scopes share nothing.
    """
    parts = [
        _canonical(message)
        if isinstance(message, dict) and message.get("role") == "assistant"
        else digest
        for message, digest in zip(messages, digests, strict=True)
    ]
    return chain_links(parts, seed=scope)


def next_link(link: Link, answer: Mapping[str, Any]) -> Link:
    """Return the link of a history continued by an assistant's message."""
    return hashlib.sha256(link + _canonical(answer)).digest()


def _canonical(answer: Mapping[str, Any]) -> bytes:
    content = answer.get("content")
    if isinstance(content, list):
        texts = [part.get("text") for part in content if isinstance(part, dict)]
        content = "".join(text for text in texts if isinstance(text, str))
    text = content.strip() if isinstance(content, str) else ""
    calls = answer.get("tool_calls")
    ids = [
        call.get("id") if isinstance(call, dict) else None
        for call in (calls if isinstance(calls, list) else ())
    ]
    return repr(("answer", text, ids)).encode()
