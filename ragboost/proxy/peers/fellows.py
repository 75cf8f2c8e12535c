"""The other workers of a proxy, as one worker sees them: what they sent and keep, and their load.

A conversation is kept by one worker. One with a name belongs to the worker that rendezvous hashing
of the name chooses, unless that one is dead or has far more to do than the others; one without a
name belongs to the worker that rewrote its last message. Requests are handed over to it by HTTP on
loopback. Whatever cannot be handed over is served here: that costs cached tokens, nothing else.
"""

import asyncio
import hmac
import logging
from collections.abc import Mapping
from functools import partial
from hashlib import blake2b

import zmq

from ragboost.bounded_map import BoundedMap
from ragboost.cache_sync.prompt_layout import PromptLayout
from ragboost.cache_sync.sync import CacheSync
from ragboost.config import BackendSettings, Settings
from ragboost.errors import BackendError, ConfigError
from ragboost.proxy.peers.exchange import PeerExchange
from ragboost.proxy.peers.load_board import LoadBoard
from ragboost.proxy.peers.messages import KeptHistory, SentPrompt, Shared
from ragboost.proxy.peers.prompt_learner import PromptLearner
from ragboost.proxy.peers.seat import WorkerSeat
from ragboost.proxy.upstream.backends import Backend, Load
from ragboost.rewriting.headers import WORKER_HEADER, RawHeaders, request_headers, with_header
from ragboost.rewriting.json_body import Link

logger = logging.getLogger(__name__)

_FETCH_TIMEOUT_S = 2.0
# A named conversation leaves its worker, and loses its history, only if that has more requests
# than this multiple of the mean, and than this many.
_LOAD_BOUND = 2.0
_MIN_BOUND = 16


class FellowWorkers:
    """The other workers; implements `Listener` of their messages.

    Args:
        seat: of this worker.
        settings: of the proxy.
        sync: follows the prefix caches, and learns what the others send.
        board: takes the others' loads.

    Attributes:
        exchange: of messages with them.
        learner: of the prompts that others have sent.
    """

    def __init__(
        self, seat: WorkerSeat, settings: Settings, *, sync: CacheSync, board: LoadBoard
    ) -> None:
        self.seat = seat
        self._sync = sync
        self._board = board
        self._busy: dict[int, int] = {}
        self._settings = settings.backend
        self._clients: dict[int, Backend] = {}
        self._ports: dict[int, int] = {}
        self._keepers: BoundedMap[Link, int] = BoundedMap(
            max_entries=settings.session.max_sessions * len(seat.others)
        )
        self.learner = PromptLearner(sync.followers)
        self.exchange = PeerExchange(seat, self, loads=board.own)

    async def open(self) -> None:
        """Begin to exchange messages.

        Raises:
            ConfigError: the folder of the sockets cannot be used.
        """
        for name, follower in self._sync.followers.items():
            follower.on_layout.append(partial(self._on_layout, name))
        await self.learner.open()
        try:
            self.exchange.open()
        except zmq.ZMQError as error:
            raise ConfigError(
                f"workers cannot use the folder {self.seat.folder}: {error}; set TMPDIR to a short "
                "path that can be written"
            ) from None

    async def close(self) -> None:
        """Stop, and close the connections to the others."""
        await self.exchange.close()
        await self.learner.close()
        for client in self._clients.values():
            client.close()

    @property
    def num_alive(self) -> int:
        """The other workers that were heard lately."""
        return sum(self.exchange.is_alive(number) for number in self.seat.others)

    @property
    def learned(self) -> int:
        """Prompts of others that this worker's indexes have taken over."""
        return self.learner.learned

    @property
    def num_lost(self) -> int:
        """Times that messages were lost, and a snapshot asked for."""
        return self.exchange.num_lost

    # What this worker tells

    def keep(self, link: Link) -> None:
        """Tell that this worker keeps the rewritten form of a message."""
        self._keepers.pop(link)
        self.exchange.publish(KeptHistory(link))

    def _on_layout(self, backend: str, request_id: str | None, layout: PromptLayout) -> None:
        self.exchange.publish(SentPrompt(backend, request_id, layout))

    # What the others tell

    def learn(self, worker: int, message: Shared) -> None:
        if isinstance(message, SentPrompt):
            self.learner.add(message)
        elif worker != self.seat.number:
            self._keepers.put(message.link, worker)

    def restarted(self, worker: int) -> None:
        for link in [link for link, keeper in self._keepers.items() if keeper == worker]:
            self._keepers.pop(link)

    def heard(self, worker: int, port: int, loads: Mapping[str, Load]) -> None:
        if self._ports.get(worker) != port:
            if (old := self._clients.get(worker)) is not None:
                old.close()
            self._ports[worker] = port
            self._clients[worker] = _client(worker, port, self._settings)
        self._busy[worker] = sum(load.assigned for load in loads.values())
        self._board.put(f"{self.seat.group}/{worker}", loads)

    # The way to them

    def owner(self, name: str) -> Backend | None:
        """Return the worker to which a conversation with a name belongs; None: this one."""
        alive = [number for number in self._clients if self.exchange.is_alive(number)]
        busy = {number: self._busy.get(number, 0) for number in alive}
        busy[self.seat.number] = sum(load.assigned for load in self._board.own().values())
        bound = max(_MIN_BOUND, _LOAD_BOUND * sum(busy.values()) / len(busy))
        ranked = sorted(busy, key=partial(_weight, name), reverse=True)
        chosen = next((number for number in ranked if busy[number] <= bound), ranked[0])
        return self._clients.get(chosen)

    def keeper(self, link: Link) -> Backend | None:
        """Return the worker that keeps the rewritten form of a message; None: unknown, or dead."""
        number = self._keepers.peek(link)
        if number is None or not self.exchange.is_alive(number):
            return None
        return self._clients.get(number)

    def has_handed_over(self, headers: RawHeaders) -> bool:
        """Return True for a request that another worker has handed over."""
        token = self.seat.token.encode()
        return any(
            name == WORKER_HEADER and hmac.compare_digest(value, token) for name, value in headers
        )

    def handed_over(self, headers: RawHeaders) -> list[tuple[bytes, bytes]]:
        """Return the headers with which a request is handed over."""
        return with_header(request_headers(headers), WORKER_HEADER, self.seat.token.encode())

    async def ask_all(
        self, path: str, headers: RawHeaders = (), *, body: bytes | None = None
    ) -> dict[int, bytes | None]:
        """Ask every other worker, all at the same time.

        Args:
            path: to GET.
            headers: of the client's request, if they matter.
            body: to POST instead.

        Returns:
            The body of each response, by number of the worker; None without one.
        """
        headers, others = self.handed_over(headers), self.seat.others
        asked = (self._ask(number, path, headers, body) for number in others)
        return dict(zip(others, await asyncio.gather(*asked), strict=True))

    async def _ask(
        self, number: int, path: str, headers: RawHeaders, body: bytes | None
    ) -> bytes | None:
        client = self._clients.get(number)
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


def _client(worker: int, port: int, settings: BackendSettings) -> Backend:
    """Make the client of a worker; its requests may take as long as the backends'."""
    own = BackendSettings(
        url=f"http://127.0.0.1:{port}",
        connect_timeout_s=settings.connect_timeout_s,
        read_timeout_s=settings.read_timeout_s + settings.connect_timeout_s,
    )
    client = Backend(own)
    client.name = f"worker-{worker}"
    return client


def _weight(name: str, number: int) -> bytes:
    """Weigh a worker for a conversation: the largest weight wins (rendezvous hashing)."""
    hashed = blake2b(f"{number} {name}".encode("utf-8", "surrogatepass"), digest_size=8)
    return hashed.digest()
