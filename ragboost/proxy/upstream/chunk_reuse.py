"""Ask the backends whether they reuse chunks.

The embedded engine, and vLLM and SGLang with our plug-in, say so at `/chunk_reuse`. With several
backends all of them must reuse chunks, since a request may move from one to another.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec

from ragboost.config import BackendSettings
from ragboost.proxy.upstream.backends import Backend

_RETRY_S = 2.0
_RECHECK_S = 30.0


class ChunkReuseProbe:
    """Know whether the backends reuse chunks. `open` and `close` belong to the event loop.

    Args:
        settings: `reuse_chunks` answers for all backends; None: ask them.
    """

    def __init__(self, settings: BackendSettings, backends: Sequence[Backend]) -> None:
        self._configured = settings.reuse_chunks
        self.is_supported = bool(settings.reuse_chunks)  # by all backends
        # Of requests that do not say, as a backend reports it; None: unknown.
        self._default_ratio: float | None = None
        self._is_default = False  # requests that do not ask for reuse have it
        self._backends = backends
        self._reusing: set[str] = set()
        self._tasks: list[asyncio.Task[None]] = []

    def recompute_ratio(self, reuse: Any, is_told: bool = True) -> float | None:
        """Return the share of reused tokens that a request computes again; None if it computes all
        exactly, or if that is unknown.

        Args:
            reuse: its `ragboost.reuse`; None: it has none.
            is_told: the backend gets the positions of its chunks.
        """
        if not (self.is_supported and is_told) or (reuse is None and not self._is_default):
            return None
        ratio = self._default_ratio
        if isinstance(reuse, dict):
            ratio = reuse.get("ratio", ratio)
        elif reuse not in (None, "approx"):
            return None
        is_number = isinstance(ratio, int | float) and not isinstance(ratio, bool)
        return ratio if is_number and ratio is not None and 0 <= ratio <= 1 else None

    async def open(self) -> None:
        """Start to ask, without waiting for an answer."""
        if self._configured is None:
            self._tasks = [asyncio.create_task(self._watch(backend)) for backend in self._backends]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _watch(self, backend: Backend) -> None:
        while True:
            answer = await backend.fetch("/chunk_reuse")
            report = _read(answer)
            if report.is_possible:
                self._reusing.add(backend.name)
                self._default_ratio = report.ratio
                self._is_default = report.default == "approx"
            else:
                self._reusing.discard(backend.name)
            self.is_supported = len(self._reusing) == len(self._backends)
            await asyncio.sleep(_RETRY_S if answer is None else _RECHECK_S)


class ReuseReport(msgspec.Struct):
    """What a backend says of chunk reuse."""

    is_possible: bool = False
    default: str = ""  # of requests that do not say: exact or approx
    ratio: float | None = None  # recompute ratio of these


def _read(answer: bytes | None) -> ReuseReport:
    try:
        return msgspec.json.decode(answer or b"{}", type=ReuseReport)
    except msgspec.DecodeError:
        return ReuseReport()  # the answer of another server
