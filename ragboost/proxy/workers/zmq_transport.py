"""Carry the messages of the workers of one proxy, over ZeroMQ sockets in a private folder.

Every worker follows the others: a snapshot first, then messages with numbers, so that a lost one is
noticed and another snapshot asked for. Sending never waits.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import zmq

from ragboost.bounded_map import BoundedMap
from ragboost.proxy.workers.identity import WorkerIdentity
from ragboost.proxy.workers.messages import (
    Beat,
    KeptHistory,
    LoadReport,
    SentPrompt,
    SharedMessage,
    SnapshotEnd,
    decode,
    encode,
)

logger = logging.getLogger(__name__)

_BEAT_S = 0.1
_ALIVE_S = 2.0  # after its last beat
_MAX_KEPT = 20_000
_MAX_KEPT_BYTES = 64 * 1024 * 1024
_MAX_QUEUED = 50_000  # messages to or from one worker; more are lost, and noticed
_PER_PASS = 64  # messages handled before the event loop goes on
_ALL = b"*"
_FRAMES = 4


class Listener(Protocol):
    """Handlers of what other workers say; called on the event loop."""

    def learn(self, worker_id: int, message: SharedMessage) -> None:
        """Handle what a worker did, which may be reported twice."""

    def restarted(self, worker_id: int) -> None:
        """Handle that the process of a worker is a new one."""

    def heard(self, worker_id: int, port: int, report: LoadReport) -> None:
        """Handle a sign of life, with the port at which the worker takes requests."""


@dataclass(slots=True)
class _Peer:
    epoch: str = ""
    alive_until: float = 0.0
    next: int | None = None  # number of its next message; None while its snapshot is awaited


class ZmqTransport:
    """One worker's side of the exchange; used on one event loop between `open` and `close`."""

    def __init__(
        self, identity: WorkerIdentity, listener: Listener, *, report: Callable[[], LoadReport]
    ) -> None:
        self.num_sent = self.num_received = 0  # messages; those sent without signs of life
        self.num_lost = 0  # times that a number showed that messages were lost
        self._identity = identity
        self._listener = listener
        self._report = report
        self._epoch = secrets.token_hex(8)
        self._peers = {worker_id: _Peer() for worker_id in identity.others}
        # What each worker did, by its id and the message's identity; for snapshots.
        self._kept: BoundedMap[tuple[int, bytes], bytes] = BoundedMap(
            max_entries=_MAX_KEPT, max_size=_MAX_KEPT_BYTES
        )
        self._beats: asyncio.Task[None] | None = None
        self._snapshots: dict[int, asyncio.Task[None]] = {}
        self._is_closed = True

    def open(self) -> None:
        """Open the sockets and begin; a zmq.ZMQError is raised if the folder cannot be used."""
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        self._pub = self._context.socket(zmq.PUB)
        self._sub = self._context.socket(zmq.SUB)
        for end in (self._pub, self._sub):
            end.setsockopt(zmq.LINGER, 0)
            end.set_hwm(_MAX_QUEUED)
        self._sub.setsockopt(zmq.RECONNECT_IVL, 50)
        self._sub.setsockopt(zmq.RECONNECT_IVL_MAX, 500)
        for topic in (_ALL, _topic(self._identity.worker_id)):
            self._sub.setsockopt(zmq.SUBSCRIBE, topic)
        self._pub.bind(self._identity.address(self._identity.worker_id))
        for worker_id in self._identity.others:
            self._sub.connect(self._identity.address(worker_id))
        self._is_closed = False
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._sub.fileno(), self._read)
        self._beats = asyncio.create_task(self._beat(), name="telling other workers")
        self._read()

    async def close(self) -> None:
        tasks = [task for task in (self._beats, *self._snapshots.values()) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if not self._is_closed:
            self._is_closed = True
            self._loop.remove_reader(self._sub.fileno())
            self._context.destroy(linger=0)

    def is_alive(self, worker_id: int) -> bool:
        return self._peers[worker_id].alive_until > time.monotonic()

    def publish(self, message: SharedMessage) -> None:
        """Tell the others what this worker did; never waits, and may be lost."""
        if self._is_closed:
            return
        data = encode(message)
        self._keep(self._identity.worker_id, message, data)
        self._send(_ALL, data, number=self.num_sent)
        self.num_sent += 1

    def _send(self, topic: bytes, data: bytes, *, number: int) -> None:
        frames = (topic, b"%d" % self._identity.worker_id, b"%d" % number, data)
        try:
            self._pub.send_multipart(frames, zmq.NOBLOCK)
        except zmq.ZMQError as error:
            logger.warning("a message to other workers is lost: %s", error)

    async def _beat(self) -> None:
        while True:
            wants = tuple(
                worker_id
                for worker_id, peer in self._peers.items()
                if peer.next is None and self.is_alive(worker_id)
            )
            port = self._identity.port
            beat = Beat(self._epoch, port, self.num_sent, self._report(), wants)
            self._send(_ALL, encode(beat), number=self.num_sent)
            await asyncio.sleep(_BEAT_S)

    def _read(self) -> None:
        """Handle what has arrived, a bounded number at a time.

        ZeroMQ's descriptor tells only that something has changed: read until nothing is left.
        """
        if self._is_closed:
            return
        for _ in range(_PER_PASS):
            try:
                frames = self._sub.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._receive(frames)
        self._loop.call_soon(self._read)

    def _receive(self, frames: list[bytes]) -> None:
        if len(frames) != _FRAMES:
            return
        topic, sender, number, data = frames
        message = decode(data)
        if message is None or not (sender.isdigit() and number.isdigit()):
            return
        worker_id = int(sender)
        peer = self._peers.get(worker_id)
        if peer is None:
            return
        self.num_received += 1
        if isinstance(message, Beat):
            self._hear(worker_id, peer, message)
        elif isinstance(message, SnapshotEnd):
            peer.next = message.num_sent
        elif topic == _ALL:
            self._follow(worker_id, peer, int(number))
            self._learn(worker_id, message, data)
        else:  # of a snapshot; its number is the id of the worker that did it
            self._learn(int(number), message, data)

    def _follow(self, worker_id: int, peer: _Peer, number: int) -> None:
        if peer.next is not None and number > peer.next:
            self._miss(worker_id, peer)
        elif number == peer.next:
            peer.next += 1

    def _learn(self, origin: int, message: SharedMessage, data: bytes) -> None:
        if origin in self._peers:
            self._keep(origin, message, data)
        if origin in self._peers or origin == self._identity.worker_id:
            self._listener.learn(origin, message)

    def _hear(self, worker_id: int, peer: _Peer, beat: Beat) -> None:
        if peer.epoch != beat.epoch:
            is_restart, peer.epoch, peer.next = bool(peer.epoch), beat.epoch, None
            if is_restart:
                logger.info("worker-%d has restarted", worker_id)
                self._listener.restarted(worker_id)
        elif peer.next is not None and beat.num_sent > peer.next:
            self._miss(worker_id, peer)
        peer.alive_until = time.monotonic() + _ALIVE_S
        self._listener.heard(worker_id, beat.port, beat.report)
        if self._identity.worker_id in beat.wants and worker_id not in self._snapshots:
            task = asyncio.create_task(self._send_snapshot(worker_id), name="sending a snapshot")
            self._snapshots[worker_id] = task
            task.add_done_callback(lambda _: self._snapshots.pop(worker_id, None))

    def _miss(self, worker_id: int, peer: _Peer) -> None:
        self.num_lost += 1
        peer.next = None
        logger.warning("messages of worker-%d are lost; asking for a snapshot", worker_id)

    async def _send_snapshot(self, receiver: int) -> None:
        """Send what this worker did, and its neighbour also what the receiver did before it died.

        Messages published meanwhile arrive before its end, in their order.
        """
        topic, own = _topic(receiver), self._identity.worker_id
        is_neighbour = (receiver + 1) % self._identity.num_workers == own
        for at, ((origin, _), data) in enumerate(self._kept.items()):
            if origin == own or (origin == receiver and is_neighbour):
                self._send(topic, data, number=origin)
            if at % _PER_PASS == 0:
                await asyncio.sleep(0)
        self._send(topic, encode(SnapshotEnd(self.num_sent)), number=self.num_sent)
        await asyncio.sleep(2 * _BEAT_S)  # the receiver's next signs of life still ask

    def _keep(self, origin: int, message: SharedMessage, data: bytes) -> None:
        key = message.link if isinstance(message, KeptHistory) else _prompt_key(message)
        self._kept.put((origin, key), data, size=len(data))


def _prompt_key(message: SentPrompt) -> bytes:
    if message.request_id is not None:
        return f"{message.backend} {message.request_id}".encode()
    return repr((message.backend, message.layout.tenant, message.layout.documents)).encode()


def _topic(worker_id: int) -> bytes:
    return b"%d:" % worker_id
