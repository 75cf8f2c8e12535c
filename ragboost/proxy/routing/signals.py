"""Reasons to prefer a backend: the message prefixes that it was sent lately, and what the context
indexes say is cached there.

Lengths of what was sent are in bytes: a model's tokens per byte change as documents are counted.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from msgspec import Raw

from ragboost.booster.tenants import number_of
from ragboost.config import RouterSettings
from ragboost.index import Clearings, Holders
from ragboost.proxy.routing.admission import MessagePrefix, RoutingRequest
from ragboost.proxy.upstream.backend import Backend
from ragboost.requests.json_body import Link
from ragboost.util.bounded_map import BoundedMap

Tokens = npt.NDArray[np.float64]
"""Tokens by number of the backend."""
Columns = npt.NDArray[np.int64]


class CacheReading(NamedTuple):
    """Tokens of a request that the prefix caches hold. (backends,)"""

    cached: Tokens  # that need not be computed
    # A lead for the backends whose cache the request suits: later requests like it find more there.
    affinity: Tokens | float = 0.0


class RoutingSignal:
    """One reason to prefer a backend, in tokens, so that reasons can be compared.

    A request goes to the backend with the fewest tokens to compute for it and before it: its own
    without the highest `cached` of all signals, plus those that wait there.
    """

    def __init__(self) -> None:
        self._names: Sequence[str] | None = None
        self._columns = np.zeros(0, np.int64)

    def columns(self, names: Sequence[str], numbers: dict[str, int]) -> Columns:
        """Return the bit of each backend; `names` is another list when backends come or go."""
        if names is not self._names:
            self._names = names
            self._columns = np.array([number_of(name, numbers) if name else 0 for name in names])
        return self._columns

    async def read(self, request: RoutingRequest, names: Sequence[str]) -> CacheReading | None:
        return None

    def cached_at(self, request: RoutingRequest, backend: Backend, reading: CacheReading) -> int:
        """Return the tokens of a request that the cache of the chosen backend should hold."""
        return int(reading.cached[backend.number])

    def note_sent(self, request: RoutingRequest, backend: Backend, *, num_bytes: int) -> None:
        """Note that a backend is sent a request of so many bytes."""

    def sent_bytes(self, prefixes: Sequence[MessagePrefix], num_bytes: int) -> int:
        """Estimate how long a request of so many bytes will be as it is sent."""
        return num_bytes

    def forget(self, backend: Backend) -> None:
        """Note that a backend's cache is empty."""

    def remove(self, backend: Backend) -> None:
        """Forget a backend that is none any more."""


def spread(columns: Columns, *groups: Sequence[Holders]) -> Tokens:
    """Add up the tokens of each group for each backend whose bit (`columns`) is in `members`.
    (groups, backends)"""
    holders = [each for group in groups for each in group]
    if not holders:
        return np.zeros((len(groups), len(columns)))
    width = int(columns.max()) // 8 + 1
    keep = (1 << 8 * width) - 1
    packed = b"".join([(each.members & keep).to_bytes(width, "little") for each in holders])
    # (holders, bits)
    bits = np.frombuffer(packed, np.uint8).reshape(len(holders), width)
    bits = np.unpackbits(bits, axis=1, bitorder="little")
    weights, end = np.zeros((len(groups), len(holders))), 0
    for row, group in zip(weights, groups, strict=True):
        start, end = end, end + len(group)
        row[start:end] = [each.tokens for each in group]
    totals: Tokens = (weights @ bits)[:, columns]
    return totals


# Tokens of lead for each token of a document that a backend was sent lately. More finds more in the
# caches, and lets requests wait behind each other: docs/lab/routing.md.
_AFFINITY = 1.25


class IndexOverlap(RoutingSignal):
    """The cached prefix that a request would have if its documents were ordered for it.

    Before documents have a common prefix anywhere, they go where they, or those that come with
    them, were sent before: a lead of their tokens, which a longer queue outweighs. Then a prefix
    forms there, and a hot document gets a second backend when its own has too much to do.
    """

    async def read(self, request: RoutingRequest, names: Sequence[str]) -> CacheReading | None:
        leading, tenant = request.leading, request.tenant
        if leading is None or tenant is None:
            return None
        columns = self.columns(names, tenant.numbers)  # while these names are the backends'
        async with tenant.lock:
            residents = tenant.residents(leading.documents, prompt_prefix=leading.prompt_prefix)
        cached, recent = spread(columns, residents.cached, residents.recent)
        return CacheReading(cached, _AFFINITY * recent)

    def cached_at(self, request: RoutingRequest, backend: Backend, reading: CacheReading) -> int:
        leading, tenant = request.leading, request.tenant
        if leading is None or tenant is None or not reading.cached[backend.number]:
            return 0
        if tenant.lock.locked():  # a thread uses the index
            return int(reading.cached[backend.number])
        booster = tenant.booster(backend.name)
        return booster.cached_tokens(leading.documents, prompt_prefix=leading.prompt_prefix)


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


def make_signals(settings: RouterSettings) -> list[RoutingSignal]:
    """Return the signals of a policy; the work that waits for a backend counts in all."""
    if settings.policy == "least_loaded":
        return []
    return [PrefixAffinity(), IndexOverlap()]
