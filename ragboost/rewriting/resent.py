"""The rewritten messages that stand in a resent history: find them, put them back, keep new ones.

Knows messages and hashes. Does not know documents' texts, and does not decide what is boosted.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from msgspec import Raw

from ragboost.context import Context
from ragboost.formats import Found
from ragboost.rewriting.body import JsonBody
from ragboost.rewriting.conversations import Conversation, Link, SentMessage, chain


class Resent(NamedTuple):
    """The rewritten messages that stand in a payload.

    Attributes:
        sent: by index, all before the question.
        link: of the question's message; None without a conversation or a message.
        repeated: what the question's message was rewritten to when it came before, or None.
        links: of all messages; none without a conversation.
    """

    sent: Mapping[int, SentMessage]
    link: Link | None
    repeated: SentMessage | None
    links: Sequence[Link] = ()

    def num_bytes(self, payload: JsonBody, end: int) -> int:
        """Bytes of the messages before `end`, as they are sent."""
        return sum(
            len(self.sent[at].message) if at in self.sent else memoryview(message).nbytes
            for at, message in enumerate(payload.messages[:end])
        )


def find_resent(
    payload: JsonBody,
    conversation: Conversation | None,
    *,
    found: Found | None = None,
    seed: bytes = b"",
) -> Resent:
    """Find what a payload's messages were rewritten to before.

    Args:
        payload: the body.
        conversation: its conversation, or None.
        found: its documents; None: look at all messages, none is the question's.
        seed: what stands above the messages and belongs to their history.
    """
    if conversation is None or (found is not None and found.message is None):
        return Resent({}, None, None)
    links = chain(payload.message_digests, seed=seed)
    end = len(links) if found is None or found.message is None else found.message
    sent: dict[int, SentMessage] = {}
    standing: set[str] = set()
    for at in range(end):
        old = conversation.sent.get(links[at])
        # What a message refers to may have been forgotten: its turn then starts over, too.
        if old is not None and old.referred <= standing:
            sent[at] = old
            standing.update(old.documents)
    if end == len(links):
        return Resent(sent, None, None, links)
    repeated = conversation.sent.get(links[end])
    if repeated is not None and not repeated.referred <= standing:
        repeated = None
    return Resent(sent, links[end], repeated, links)


def with_messages(body: Mapping[str, Any], sent: Mapping[int, SentMessage]) -> dict[str, Any]:
    """The body with these messages as they were sent before."""
    if not sent:
        return dict(body)
    messages = list(body["messages"])
    for at, old in sent.items():
        messages[at] = Raw(old.message)
    return {**body, "messages": messages}


def remember(
    payload: JsonBody,
    body: dict[str, Any],
    message: int,
    conversation: Conversation,
    link: Link,
    context: Context,
) -> dict[str, Any]:
    """Keep the question's message; what is kept is the very object that is sent."""
    value = body["messages"][message]
    is_original = value is payload.body["messages"][message]
    sent = payload.encode_bytes(payload.messages[message] if is_original else value)
    retrieved = tuple([document.key for document in context.retrieved])
    documents = tuple([document.key for document in context.documents])
    conversation.remember(link, SentMessage(sent, retrieved, documents))
    if is_original:
        return body
    messages = list(body["messages"])
    messages[message] = Raw(sent)
    return {**body, "messages": messages}
