"""Sample the counters of the last hour for the dashboard."""

import asyncio
import time
from collections import deque
from typing import Self

from prometheus_client import CollectorRegistry

from ragboost.proxy.routes.dashboard.figures import read_samples, read_totals

_INTERVAL_S = 5.0
_MAX_SAMPLES = 720
_COLUMNS = ("prompt_tokens", "cached_tokens", "saved_tokens")


class TotalsHistory:
    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._samples: deque[tuple[float, ...]] = deque(maxlen=_MAX_SAMPLES)
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def as_json(self) -> dict[str, list[float]]:
        """Return the columns of the samples, the last one taken now."""
        columns = zip(*self._samples, self._sample(), strict=True)
        return dict(zip(("time", *_COLUMNS), map(list, columns), strict=True))

    async def _run(self) -> None:
        while True:
            self._samples.append(self._sample())
            await asyncio.sleep(_INTERVAL_S)

    def _sample(self) -> tuple[float, ...]:
        totals = read_totals(read_samples(self._registry.collect()))
        return (time.time(), *(totals[name] for name in _COLUMNS))
