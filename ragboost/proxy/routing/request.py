"""The facts about a request that routing uses. Does not know backends."""

from collections.abc import Mapping
from typing import NamedTuple

from ragboost.booster.tenants import Tenant
from ragboost.rewriting.json_body import JsonBody, Link, chain_links
from ragboost.rewriting.parsed_request import ParsedRequest
from ragboost.rewriting.sent_history import Conversation
from ragboost.tokens import DEFAULT_TOKENS_PER_BYTE
from ragboost.types import Request

# Planning takes place on the event loop; larger requests are boosted in a thread.
_MAX_PLANNED_TOKENS = 50_000
_MAX_PLANNED_DOCUMENTS = 500


class MessagePrefix(NamedTuple):
    """The messages up to one of them, and their length in bytes as the client gave them."""

    link: Link
    num_bytes: int


def prefixes_of(body: JsonBody, *, seed: bytes) -> tuple[MessagePrefix, ...]:
    """Return the prefixes of a body's messages.

    Args:
        body: of the request.
        seed: everything that precedes the messages in the prompt, or separates caches.
    """
    prefixes, num_bytes = [], 0
    links = chain_links(body.message_digests, seed=seed)
    for message, link in zip(body.messages, links, strict=True):
        num_bytes += memoryview(message).nbytes
        prefixes.append(MessagePrefix(link, num_bytes))
    return tuple(prefixes)


class RoutingRequest:
    """The facts about a request that routing uses; the defaults say that nothing is known."""

    __slots__ = (
        "_leading",
        "_parsed",
        "_sent",
        "cached_by_backend",
        "conversation",
        "history",
        "is_stream",
        "prefixes",
        "prompt_tokens",
        "tenant",
        "tokens_per_byte",
    )

    def __init__(
        self,
        *,
        tenant: Tenant | None = None,
        leading: Request | None = None,
        parsed: ParsedRequest | None = None,
        sent: Conversation | None = None,
        prefixes: tuple[MessagePrefix, ...] = (),
        history: Link = b"",
        prompt_tokens: int = 0,
        tokens_per_byte: float = DEFAULT_TOKENS_PER_BYTE,
        conversation: str = "",
        is_stream: bool = False,
    ) -> None:
        self.tenant = tenant  # whose context indexes hold its documents
        self.prefixes = prefixes  # of its messages
        self.history = history  # hash of its history as the engine was sent it
        self.prompt_tokens = prompt_tokens  # estimated
        self.tokens_per_byte = tokens_per_byte  # of that estimate
        self.conversation = conversation  # unique name; its requests keep their order
        self.is_stream = is_stream  # the first byte shows that the prompt is computed
        self.cached_by_backend: Mapping[str, int] = {}  # tokens of it in each prefix cache
        self._leading = leading
        self._parsed = parsed
        self._sent = sent  # what the engine was sent for its conversation

    @property
    def leading(self) -> Request | None:
        """Its documents, if they are at the front of the payload and may be ordered."""
        return self._parsed.leading(self._sent) if self._parsed is not None else self._leading

    @property
    def plannable(self) -> Request | None:
        """Its documents, if they can be planned without delaying other requests."""
        leading = self.leading
        if leading is None or self.tenant is None or self.prompt_tokens > _MAX_PLANNED_TOKENS:
            return None
        return leading if len(leading.documents) <= _MAX_PLANNED_DOCUMENTS else None
