"""The other workers of a proxy: what they keep, how busy they are, and the way to them.

A named conversation belongs to the worker that rendezvous hashing chooses, unless that is dead or
far too busy; one without a name to the worker that rewrote its last message. Requests go there by
HTTP.
"""

import asyncio
import hmac
import logging
from functools import partial
from hashlib import blake2b

import zmq

from ragboost.config import BackendSettings
from ragboost.errors import BackendConnectionError, BackendError, ConfigError
from ragboost.proxy.upstream.backend import Backend
from ragboost.proxy.workers.identity import WorkerIdentity
from ragboost.proxy.workers.message_handler import MessageHandler
from ragboost.proxy.workers.messages import KeptHistory, LoadReport, SentPrompt, SharedMessage
from ragboost.proxy.workers.zmq_transport import ZmqTransport
from ragboost.rewriting.headers import WORKER_HEADER, RawHeaders, request_headers, with_header
from ragboost.rewriting.json_body import Link

logger = logging.getLogger(__name__)

_FETCH_TIMEOUT_S = 2.0
# A named conversation leaves its worker, and loses its history, only if that has more requests
# than this multiple of the mean, and than this many.
_LOAD_BOUND = 2.0
_MIN_BOUND = 16


class WorkerPool:
    """The other workers; implements `Listener` of their messages."""

    def __init__(
        self, identity: WorkerIdentity, settings: BackendSettings, handler: MessageHandler
    ) -> None:
        self.identity = identity
        self._settings = settings
        self.handler = handler
        self._clients: dict[int, Backend] = {}
        self._ports: dict[int, int] = {}
        self._busy: dict[int, int] = {}  # requests that the others have
        self._ids = {identity.name(worker_id): worker_id for worker_id in identity.others}
        self._transport = ZmqTransport(identity, self, report=handler.report)

    async def open(self) -> None:
        """Begin to exchange messages."""
        self.handler.watch(self._transport.publish)
        await self.handler.open()
        try:
            self._transport.open()
        except zmq.ZMQError as error:
            raise ConfigError(
                f"workers cannot use the folder {self.identity.folder}: {error}; set TMPDIR to a "
                "short path that can be written"
            ) from None

    async def close(self) -> None:
        await self._transport.close()
        await self.handler.close()
        for client in self._clients.values():
            client.close()

    @property
    def num_alive(self) -> int:
        return sum(map(self._transport.is_alive, self.identity.others))

    def keep(self, link: Link) -> None:
        """Tell the others that this worker keeps the rewritten form of a message."""
        self.handler.keepers.pop(link)
        self._transport.publish(KeptHistory(link))

    # What the others tell

    def learn(self, worker_id: int, message: SharedMessage) -> None:
        # What this worker kept before a restart is lost.
        if worker_id != self.identity.worker_id or isinstance(message, SentPrompt):
            self.handler.apply(self.identity.name(worker_id), message)

    def restarted(self, worker_id: int) -> None:
        self.handler.forget_histories(self.identity.name(worker_id))

    def heard(self, worker_id: int, port: int, report: LoadReport) -> None:
        if self._ports.get(worker_id) != port:
            if (old := self._clients.get(worker_id)) is not None:
                old.close()
            self._ports[worker_id] = port
            self._clients[worker_id] = _client(worker_id, port, self._settings)
        self._busy[worker_id] = _num_assigned(report)
        self.handler.apply(self.identity.name(worker_id), report)

    # The way to them

    def owner(self, name: str) -> Backend | None:
        """Return the worker to which a conversation with a name belongs; None: this one."""
        alive = [i for i in self._clients if self._transport.is_alive(i)]
        busy = {worker_id: self._busy.get(worker_id, 0) for worker_id in alive}
        busy[self.identity.worker_id] = _num_assigned(self.handler.report())
        bound = max(_MIN_BOUND, _LOAD_BOUND * sum(busy.values()) / len(busy))
        ranked = sorted(busy, key=partial(_weight, name), reverse=True)
        chosen = next((worker_id for worker_id in ranked if busy[worker_id] <= bound), ranked[0])
        return self._clients.get(chosen)

    def keeper(self, link: Link) -> Backend | None:
        """Return the worker that keeps the rewritten form of a message; None: unknown, or dead."""
        worker_id = self._ids.get(self.handler.keepers.peek(link) or "")
        if worker_id is None or not self._transport.is_alive(worker_id):
            return None
        return self._clients.get(worker_id)

    def has_handed_over(self, headers: RawHeaders) -> bool:
        token = self.identity.token.encode()
        return any(
            name == WORKER_HEADER and hmac.compare_digest(value, token) for name, value in headers
        )

    def handed_over(self, headers: RawHeaders) -> list[tuple[bytes, bytes]]:
        return with_header(request_headers(headers), WORKER_HEADER, self.identity.token.encode())

    async def ask_all(
        self, path: str, headers: RawHeaders = (), *, body: bytes | None = None
    ) -> dict[int, bytes | None]:
        """GET a path from every other worker at the same time, or POST a body to it.

        Returns the body of each response, by id of the worker; None without one.
        """
        headers, others = self.handed_over(headers), self.identity.others
        responses = (self._ask(worker_id, path, headers, body) for worker_id in others)
        return dict(zip(others, await asyncio.gather(*responses), strict=True))

    async def _ask(
        self, worker_id: int, path: str, headers: RawHeaders, body: bytes | None
    ) -> bytes | None:
        client = self._clients.get(worker_id)
        if client is None:
            return None
        try:
            status, data = await client.ask(
                path, body=body, headers=headers, timeout_s=_FETCH_TIMEOUT_S
            )
        except BackendError as error:
            logger.warning("%s does not answer: %s", client.name, error)
            return None
        return data if status in (200, 503) else None


class WorkerLostError(BackendConnectionError):
    pass


class WorkerSlot:
    """A request's place at another worker, as `relay` sees it; it moves to no other backend."""

    cached_tokens = 0  # unknown here

    def __init__(self, worker: Backend) -> None:
        self._worker = worker

    @property
    def backend(self) -> Backend:
        return self._worker

    def fail_over(self, error: BackendError) -> bool:
        """Give up a worker that is lost; one that is slow is left to answer with an error."""
        if isinstance(error, BackendConnectionError):
            raise WorkerLostError(str(error)) from error
        return False

    def prefill_done(self, *, is_stream: bool = False) -> None:
        """Do nothing: the worker counts its own load."""


def _client(worker_id: int, port: int, settings: BackendSettings) -> Backend:
    own = BackendSettings(
        url=f"http://127.0.0.1:{port}",
        connect_timeout_s=settings.connect_timeout_s,
        read_timeout_s=settings.read_timeout_s + settings.connect_timeout_s,
    )
    client = Backend(own)
    client.name = f"worker-{worker_id}"
    return client


def _num_assigned(report: LoadReport) -> int:
    return sum(load.assigned for load in report.loads.values())


def _weight(name: str, worker_id: int) -> bytes:
    """Weigh a worker for a conversation: the largest weight wins (rendezvous hashing)."""
    hashed = blake2b(f"{worker_id} {name}".encode("utf-8", "surrogatepass"), digest_size=8)
    return hashed.digest()
