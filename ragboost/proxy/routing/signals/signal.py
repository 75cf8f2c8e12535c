"""The interface of a routing signal."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ragboost.booster.tenants import number_of
from ragboost.index import Holders
from ragboost.proxy.routing.admission import MessagePrefix, RoutingRequest
from ragboost.proxy.upstream.backend import Backend

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
