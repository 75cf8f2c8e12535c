"""The load that other processes put on the backends, with a lifetime.

Knows counts by process and backend. Does not know how they arrive.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence

from ragboost.proxy.upstream.backends import Backend, Load

LIFETIME_S = 1.0
"""Seconds after which a load that was not repeated is forgotten: ten lost beats."""
_MAX_SOURCES = 1024


class LoadBoard:
    """The last loads of other processes, summed up in each backend's `load.elsewhere`.

    Args:
        backends: those whose loads count; others are ignored.
        on_change: called when the sums have changed.
        clock: monotonic, in seconds.
    """

    def __init__(
        self,
        backends: Sequence[Backend],
        *,
        on_change: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._backends = backends
        self._on_change = on_change
        self._clock = clock
        self._loads: dict[str, tuple[float, Mapping[str, Load]]] = {}

    def own(self) -> dict[str, Load]:
        """Return this process's loads by key of the backend, without those that are zero."""
        loads = {each.key: each.load for each in self._backends}
        return {
            key: Load(load.running, load.assigned, load.prefill_tokens)
            for key, load in loads.items()
            if load.assigned
        }

    def put(self, source: str, loads: Mapping[str, Load]) -> None:
        """Replace the loads of a process."""
        if source not in self._loads and len(self._loads) >= _MAX_SOURCES:
            return
        self._loads[source] = (self._clock() + LIFETIME_S, loads)
        self._sum()

    def expire(self) -> None:
        """Forget the processes that were silent for too long."""
        now = self._clock()
        silent = [source for source, (until, _) in self._loads.items() if until < now]
        for source in silent:
            del self._loads[source]
        if silent:
            self._sum()

    async def open(self) -> None:
        """Begin to expire loads, whoever else has died."""
        self._expiry = asyncio.create_task(self._expire_often(), name="expiring loads")

    async def close(self) -> None:
        """Stop."""
        self._expiry.cancel()
        await asyncio.gather(self._expiry, return_exceptions=True)

    async def _expire_often(self) -> None:
        while True:
            await asyncio.sleep(LIFETIME_S / 2)
            self.expire()

    def _sum(self) -> None:
        is_changed = False
        for backend in self._backends:
            given = [loads.get(backend.key, Load()) for _, loads in self._loads.values()]
            total = Load(*(max(0, sum(column)) for column in zip(*given, strict=True)))
            is_changed = is_changed or total != backend.load.elsewhere
            backend.load.elsewhere = total
        if is_changed:
            self._on_change()
