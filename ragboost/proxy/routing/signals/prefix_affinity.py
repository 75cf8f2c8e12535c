"""Track the message prefixes recently sent to each backend, for cache-affinity routing.

Knows hashes of the client's original messages and lengths of what was sent for them, in bytes: a
model's tokens per byte change as its documents are counted. Does not know documents: the context
index does.
"""

from collections.abc import Sequence

from ragboost.bounded_map import BoundedMap
from ragboost.config import RouterSettings
from ragboost.proxy.routing.request import MessagePrefix, RoutingRequest
from ragboost.proxy.routing.signals.signal import RoutingSignal
from ragboost.proxy.upstream.backends import Backend
from ragboost.rewriting.json_body import Link


class PrefixAffinity(RoutingSignal):
    """The prefixes sent to each backend; the least recently used of each are evicted."""

    reads_caches = True

    def __init__(self, settings: RouterSettings) -> None:
        super().__init__(settings)
        self._max_prefixes = settings.max_prefixes
        self._sent: dict[str, BoundedMap[Link, int]] = {}

    async def cached_tokens(self, request: RoutingRequest, backend: Backend) -> int:
        """Return the tokens of the longest part of its messages that the backend was sent."""
        sent, _ = self.longest(backend.name, request.prefixes)
        sent = max(sent, self.num_bytes(backend.name, request.history))
        return int(sent * request.tokens_per_byte)

    def longest(self, backend: str, prefixes: Sequence[MessagePrefix]) -> tuple[int, int]:
        """Find the longest prefix that a backend was sent.

        Returns:
            Its bytes as they were sent, and as the client gave them; 0, 0 if there is none.
        """
        sent = self._sent.get(backend)
        if sent is None:
            return 0, 0
        for link, given in reversed(prefixes):
            if (num_bytes := sent.peek(link)) is not None:
                return num_bytes, given
        return 0, 0

    def num_bytes(self, backend: str, link: Link) -> int:
        """Return the bytes of a prefix as a backend was sent it; 0 for an empty or unknown one."""
        sent = self._sent.get(backend)
        return (sent.peek(link) or 0) if link and sent is not None else 0

    def remember(self, backend: str, prefixes: Sequence[MessagePrefix], *, num_bytes: int) -> None:
        """Note that a backend is sent these prefixes, the last one with `num_bytes`.

        The earlier ones keep the length with which they were sent, where it is known.
        """
        if not prefixes:
            return
        sent = self._sent.get(backend)
        if sent is None:
            sent = self._sent[backend] = BoundedMap(max_entries=self._max_prefixes)
        for prefix in prefixes[:-1]:
            if prefix.link in sent:
                sent.touch(prefix.link)
            else:
                sent.put(prefix.link, prefix.num_bytes)
        sent.put(prefixes[-1].link, num_bytes)

    def forget(self, backend: str) -> None:
        """Drop the prefixes of a backend that lost its prefix cache."""
        self._sent.pop(backend, None)
