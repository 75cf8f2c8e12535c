"""Ask the backends whether they reuse chunks.

The embedded engine, and vLLM and SGLang with our plug-in, say so at `/chunk_reuse`. With several
backends all of them must reuse chunks, since a request may move from one to another.
"""

import asyncio
from collections.abc import Sequence

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
        self._backends = backends
        self._reusing: set[str] = set()
        self._tasks: list[asyncio.Task[None]] = []

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
            change = self._reusing.add if _is_possible(answer) else self._reusing.discard
            change(backend.name)
            self.is_supported = len(self._reusing) == len(self._backends)
            await asyncio.sleep(_RETRY_S if answer is None else _RECHECK_S)


def _is_possible(answer: bytes | None) -> bool:
    try:
        return msgspec.json.decode(answer or b"{}")["is_possible"] is True
    except (msgspec.DecodeError, TypeError, KeyError):
        return False  # the answer of another server
