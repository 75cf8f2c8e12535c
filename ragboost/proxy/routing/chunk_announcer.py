"""Announce the documents of a waiting request to its backend, which loads their KV meanwhile.

An announcement delays nothing and may be lost.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from ragboost.booster.context import Context
from ragboost.config import HintSettings
from ragboost.errors import BackendError, RagBoostError
from ragboost.hints import label_documents
from ragboost.proxy.upstream.backend import Backend
from ragboost.proxy.upstream.chunk_reuse import ChunkReuseProbe
from ragboost.requests.chunk_positions import add_chunks
from ragboost.requests.formats.ragboost_object import FIELD
from ragboost.requests.headers import CREDENTIALS
from ragboost.requests.parsed_request import Bypass, ParsedRequest, run_bytes
from ragboost.requests.rewriter import Rewriting

_MAX_IN_FLIGHT = 8  # for each backend; further ones are dropped
# Of bodies, for all backends: they are rendered beside requests, and kept until they are sent.
_MAX_IN_FLIGHT_BYTES = 8 << 20
_TIMEOUT_S = 2.0
_PATHS: Mapping[str, str] = {"messages": "/v1/chat/completions", "prompt": "/v1/completions"}


class ChunkAnnouncer:
    """Announces to the backends that load chunks ahead, and counts what became of it."""

    def __init__(
        self, probe: ChunkReuseProbe, hints: HintSettings, *, count: Callable[[str], None]
    ) -> None:
        self._probe, self._label_template, self._count = probe, hints.label_template, count
        self._tasks: set[asyncio.Task[None]] = set()
        self._in_flight: Counter[Backend] = Counter()
        self._in_flight_bytes = 0

    def announce(self, request: ParsedRequest, backend: Backend) -> None:
        """Announce a request that waits for a backend, if that helps; return at once."""
        if request.found is None or not self._probe.loads_ahead(backend):
            return
        if self._probe.recompute_ratio(request.options.get("reuse")) is None:
            return  # it reuses nothing
        size = len(request.body.raw)
        is_full = self._in_flight_bytes + size > _MAX_IN_FLIGHT_BYTES
        if is_full or self._in_flight[backend] >= _MAX_IN_FLIGHT:
            self._count("dropped")
            return
        self._in_flight[backend] += 1
        self._in_flight_bytes += size
        task = asyncio.create_task(self._send(request, backend))
        self._tasks.add(task)
        task.add_done_callback(partial(self._end, backend, size))

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _end(self, backend: Backend, size: int, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._in_flight_bytes -= size
        self._in_flight[backend] -= 1
        if not self._in_flight[backend]:
            del self._in_flight[backend]  # it may have been removed
        if not task.cancelled():
            task.result()  # a bug is reported

    async def _send(self, request: ParsedRequest, backend: Backend) -> None:
        raw = request.body.raw
        path = next((path for name, path in _PATHS.items() if name in request.body.fields), "")
        try:
            body = await run_bytes(partial(self._body, request), len(raw))
            if body is None or not path:
                return
            credentials = [header for header in request.headers if header[0] in CREDENTIALS]
            status, _ = await backend.ask(
                f"/chunk_prefetch{path}", body=body, headers=credentials, timeout_s=_TIMEOUT_S
            )
        except BackendError:
            self._count("failed")
            return
        if status == 404:
            self._probe.note_no_prefetch(backend)
        self._count("sent" if status == 202 else "failed")

    def _body(self, request: ParsedRequest) -> bytes | None:
        """Return the request with its documents' positions; None if they are not found."""
        found, template = request.found, self._label_template
        assert found is not None, "a request without documents is not announced"
        documents = found.documents
        try:
            fields = Rewriting(request, None, label_template=template).render(Bypass("announced"))
        except RagBoostError:
            return None  # it is refused, or forwarded as it came
        context = Context(
            query=found.query,
            documents=documents,
            retrieved=documents,
            positions=tuple(range(len(documents))),
            labels=label_documents(documents, template=template, known={}),
        )
        reuse, team = request.options.get("reuse"), request.tenant_key.team
        announced: Mapping[str, Any] = add_chunks(
            fields.fields, context, message=found.message, reuse=reuse, tenant=team
        )
        is_found = "chunks" in announced.get(FIELD, {})
        return request.body.encode(announced) if is_found else None
