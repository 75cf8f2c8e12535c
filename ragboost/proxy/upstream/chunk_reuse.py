"""Ask the backends whether they reuse chunks.

The embedded engine, and vLLM and SGLang with our plug-in, say so at `/chunk_reuse`. With several
backends all of them must reuse chunks, since a request may move from one to another.
"""

import asyncio
from collections.abc import Sequence

import msgspec

from ragboost.config import BackendSettings
from ragboost.proxy.upstream.backends import Backend
from ragboost.rewriting.graph_documents import graph_as_documents

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
        self.reads_graphs = False  # all backends read `ragboost.graph`
        self._backends = backends
        self._reusing: set[str] = set()
        self._reading: set[str] = set()
        self._tasks: list[asyncio.Task[None]] = []

    def readable(self, raw: bytes, *, has_chunks: bool) -> bytes:
        """Return a request's body with documents in place of a graph, unless the backends read it.

        Args:
            has_chunks: the request is sent with positions of documents where they are reused.

        Raises:
            RequestError: the graph is malformed, or the backends cannot compute what it asks for.
        """
        if self.reads_graphs:
            return raw
        return graph_as_documents(raw, can_reuse=self.is_supported and has_chunks)

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
            change = self._reusing.add if _says(answer, "is_possible") else self._reusing.discard
            change(backend.name)
            self.is_supported = len(self._reusing) == len(self._backends)
            change = self._reading.add if _says(answer, "graphs") else self._reading.discard
            change(backend.name)
            self.reads_graphs = len(self._reading) == len(self._backends)
            await asyncio.sleep(_RETRY_S if answer is None else _RECHECK_S)


def _says(answer: bytes | None, name: str) -> bool:
    try:
        return msgspec.json.decode(answer or b"{}")[name] is True
    except (msgspec.DecodeError, TypeError, KeyError):
        return False  # the answer of another server
