"""The load that other processes put on the backends, with a lifetime."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence

from msgspec.structs import astuple

from ragboost.proxy.upstream.backend import Backend, Load

LIFETIME_S = 1.0  # of a load that is not repeated: ten lost beats
_MAX_SOURCES = 1024
_NONE = Load()


class LoadBoard:
    """The last loads of other processes, summed up in each backend's `elsewhere`."""

    def __init__(
        self,
        backends: Sequence[Backend],
        *,
        on_change: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._backends = {backend.key: backend for backend in backends}
        self._on_change = on_change
        self._clock = clock
        self._loads: dict[str, tuple[float, Mapping[str, Load]]] = {}  # those of known backends

    def add(self, backend: Backend) -> None:
        self._backends[backend.key] = backend

    def remove(self, backend: Backend) -> None:
        del self._backends[backend.key]
        for source, (until, loads) in self._loads.items():
            others = {key: load for key, load in loads.items() if key != backend.key}
            self._loads[source] = until, others

    def own(self) -> dict[str, Load]:
        """Return this process's loads by key of the backend, without those that are zero."""
        return {key: each.load for key, each in self._backends.items() if each.load.assigned}

    def put(self, source: str, loads: Mapping[str, Load]) -> None:
        if source not in self._loads and len(self._loads) >= _MAX_SOURCES:
            return
        now = {key: _counted(load) for key, load in loads.items() if key in self._backends}
        _, before = self._loads.get(source, (0.0, {}))
        self._loads[source] = (self._clock() + LIFETIME_S, now)
        if now != before:
            self._change(before, now)

    def expire(self) -> None:
        now = self._clock()
        silent = [source for source, (until, _) in self._loads.items() if until < now]
        for source in silent:
            _, loads = self._loads.pop(source)
            if loads:
                self._change(loads, {})

    async def open(self) -> None:
        self._expiry = asyncio.create_task(self._expire_often(), name="expiring loads")

    async def close(self) -> None:
        self._expiry.cancel()
        await asyncio.gather(self._expiry, return_exceptions=True)

    async def _expire_often(self) -> None:
        while True:
            await asyncio.sleep(LIFETIME_S / 2)
            self.expire()

    def _change(self, before: Mapping[str, Load], now: Mapping[str, Load]) -> None:
        """Put a process's loads into the sums in place of those before.

        Only its own backends are visited: with many processes and many backends, adding up all
        loads for each message would take longer than the time between two of them.
        """
        for key in before.keys() | now.keys():
            backend = self._backends[key]
            loads = backend.elsewhere, before.get(key, _NONE), now.get(key, _NONE)
            columns = zip(*map(astuple, loads), strict=True)
            backend.hear(Load(*[total - old + new for total, old, new in columns]))
        self._on_change()


def _counted(load: Load) -> Load:
    return Load(*[max(0, number) for number in astuple(load)])
