"""Track the message prefixes recently sent to each backend, for cache-affinity routing.

Knows hashes of the client's messages, not documents. Lengths of what was sent for them are in
bytes: a model's tokens per byte change as its documents are counted.
"""

from collections.abc import Sequence

from ragboost.bounded_map import BoundedMap
from ragboost.config import RouterSettings
from ragboost.proxy.routing.admission import Admission, MessagePrefix
from ragboost.proxy.routing.signals.signal import RoutingSignal
from ragboost.proxy.upstream.backends import Backend
from ragboost.rewriting.json_body import JsonBody, Link, chain_links


class PrefixAffinity(RoutingSignal):
    """The prefixes sent to each backend; the least recently used of each are evicted."""

    reads_caches = True

    def __init__(self, settings: RouterSettings) -> None:
        super().__init__(settings)
        self._max_prefixes = settings.max_prefixes
        self._sent: dict[str, BoundedMap[Link, int]] = {}

    async def cached_tokens(self, admission: Admission, backend: Backend) -> int:
        sent, _ = self.longest(backend.name, admission.prefixes)
        sent = max(sent, self.num_bytes(backend.name, admission.history))
        return int(sent * admission.tokens_per_byte)

    def longest(self, backend: str, prefixes: Sequence[MessagePrefix]) -> tuple[int, int]:
        """Find the longest prefix that a backend was sent.

        Returns:
            Its bytes as they were sent, and as the client gave them; 0, 0 if there is none.
        """
        sent = self._sent.get(backend)
        if sent is None:
            return 0, 0
        for link, original in reversed(prefixes):
            if (num_bytes := sent.peek(link)) is not None:
                return num_bytes, original
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
        self._sent.pop(backend, None)


def prefixes_of(body: JsonBody, *, seed: bytes) -> tuple[MessagePrefix, ...]:
    """Return the prefixes of a body's messages.

    Args:
        seed: everything that precedes the messages in the prompt, or separates caches.
    """
    prefixes, num_bytes = [], 0
    links = chain_links(body.message_digests, seed=seed)
    for message, link in zip(body.messages, links, strict=True):
        num_bytes += memoryview(message).nbytes
        prefixes.append(MessagePrefix(link, num_bytes))
    return tuple(prefixes)
