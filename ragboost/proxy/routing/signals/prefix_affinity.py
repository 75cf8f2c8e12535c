"""Track the message prefixes recently sent to the backends, for cache-affinity routing.

Lengths of what was sent are in bytes: a model's tokens per byte change as documents are counted.
"""

from collections.abc import Sequence
from typing import NamedTuple

from msgspec import Raw

from ragboost.booster.tenants import number_of
from ragboost.index import Clearings, Holders
from ragboost.proxy.routing.admission import MessagePrefix, RoutingRequest
from ragboost.proxy.routing.signals.signal import (
    CacheReading,
    RoutingSignal,
    spread,
)
from ragboost.proxy.upstream.backend import Backend
from ragboost.requests.json_body import Link
from ragboost.util.bounded_map import BoundedMap

_MAX_PREFIXES = 50_000  # for each backend


class _Sent(NamedTuple):
    """A prefix that some backends were sent."""

    num_bytes: int  # as it was sent last
    members: int  # the bits of the backends; those forgotten later than `tick` do not count
    tick: int


class PrefixAffinity(RoutingSignal):
    """The prefixes sent to all backends; the least recently used are evicted."""

    def __init__(self, *, max_prefixes: int = _MAX_PREFIXES) -> None:
        super().__init__()
        self._max_prefixes = max_prefixes
        self._sent = BoundedMap[Link, _Sent](max_entries=max_prefixes)
        self._numbers: dict[str, int] = {}  # of the backends' bits
        self._tick = 0
        self._forgotten = Clearings()

    async def read(self, request: RoutingRequest, names: Sequence[str]) -> CacheReading | None:
        links = [prefix.link for prefix in reversed(request.prefixes)]
        found = [sent for link in links if (sent := self._sent.peek(link)) is not None]
        if not found:
            return None
        columns = self.columns(names, self._numbers)
        holders, seen = [], 0
        found.sort(reverse=True)  # longest first
        for sent in found:
            members = self._members(sent) & ~seen
            seen |= members
            holders.append(Holders(int(sent.num_bytes * request.tokens_per_byte), members))
        (cached,) = spread(columns, holders)
        return CacheReading(cached)

    def sent_bytes(self, prefixes: Sequence[MessagePrefix], num_bytes: int) -> int:
        """Add what the longest prefix that a backend was sent has gained when it was rewritten."""
        for link, original in reversed(prefixes):
            sent = self._sent.peek(link)
            if sent is not None and self._members(sent):
                return num_bytes + max(0, sent.num_bytes - original)
        return num_bytes

    def note_sent(self, request: RoutingRequest, backend: Backend, *, num_bytes: int) -> None:
        """Note the prefixes, which keep the length with which they were sent first."""
        bit = 1 << number_of(backend.name, self._numbers)
        self._sent.max_entries = self._max_prefixes * len(self._numbers)
        self._tick += 1
        for at, (link, length) in enumerate(request.prefixes, start=1):
            sent = self._sent.get(link)
            members = self._members(sent) if sent is not None else 0
            if at == len(request.prefixes):
                length = num_bytes
            elif sent is not None and members:
                length = sent.num_bytes
            self._sent.put(link, _Sent(length, members | bit, self._tick))

    def forget(self, backend: Backend) -> None:
        number = self._numbers.get(backend.name)
        if number is not None:
            self._forgotten.add(1 << number, self._tick)

    def remove(self, backend: Backend) -> None:
        self.forget(backend)
        self._numbers.pop(backend.name, None)

    def _members(self, sent: _Sent) -> int:
        return self._forgotten.live(sent.members, sent.tick)


def prefixes_of(links: Sequence[Link], messages: Sequence[Raw]) -> tuple[MessagePrefix, ...]:
    """Return the prefixes of a body's messages, with their links."""
    prefixes, num_bytes = [], 0
    for message, link in zip(messages, links, strict=True):
        num_bytes += memoryview(message).nbytes
        prefixes.append(MessagePrefix(link, num_bytes))
    return tuple(prefixes)
