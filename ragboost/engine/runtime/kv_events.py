"""Publish the prefix cache's events in vLLM 0.32's wire format, over ZeroMQ: topic, sequence number
(8 bytes, big endian, from 0), and a batch as msgpack. An endpoint is always bound."""

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Sequence

import zmq

from ragboost.cache_events import Event, EventBatch, encode_batch
from ragboost.errors import ConfigError

logger = logging.getLogger(__name__)

_END_OF_REPLAY = (-1).to_bytes(8, "big", signed=True)
_REPLAY_BATCHES = 10_000
_MAX_UNSENT = 100_000  # batches per slow subscriber
_POLL_MS = 20


class EventPublisher:
    """Send batches from a background thread, and replay the last 10,000 on request. A batch that
    finds the queue full keeps its number, so that subscribers detect a gap."""

    def __init__(
        self,
        endpoint: str,
        *,
        max_queued: int = 10_000,
    ) -> None:
        self.num_dropped = 0
        self._queue: queue.Queue[tuple[int, EventBatch]] = queue.Queue(max_queued)
        self._next_seq = 0
        self._buffer: deque[tuple[int, bytes]] = deque(maxlen=_REPLAY_BATCHES)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        try:  # the endpoints have the real port in place of a wildcard
            self._pub, self.endpoint = self._bind(zmq.PUB, endpoint)
            beside = f"{endpoint}-replay"
            if endpoint.startswith("tcp:"):
                beside = f"{endpoint.rpartition(':')[0]}:*"
            self._router, self.replay_endpoint = self._bind(zmq.ROUTER, beside)
        except ConfigError:
            self._context.destroy(linger=0)
            raise
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ragboost-kv-events", daemon=True)
        self._thread.start()

    def publish(self, events: Sequence[Event]) -> None:
        """Queue a batch without blocking. Call from one thread only."""
        batch = EventBatch(time.time(), events, dp_rank=0)
        seq, self._next_seq = self._next_seq, self._next_seq + 1
        try:
            self._queue.put_nowait((seq, batch))
        except queue.Full:
            self.num_dropped += 1

    def close(self) -> None:
        """Send the queued batches and close the sockets."""
        if not self._stopping.is_set():
            self._stopping.set()
            self._thread.join()
            self._context.destroy(linger=200)

    def _bind(self, kind: int, endpoint: str) -> "tuple[zmq.Socket[bytes], str]":
        socket = self._context.socket(kind)
        # ZeroMQ silently drops beyond the mark; a replay is bounded by the buffer anyway.
        socket.setsockopt(zmq.SNDHWM, _MAX_UNSENT if kind == zmq.PUB else 0)
        try:
            socket.bind(endpoint)
        except zmq.ZMQError as error:
            raise ConfigError(
                f"engine.kv_events_endpoint: cannot bind {endpoint!r}: {error}; "
                "set a free address of this machine, such as tcp://127.0.0.1:5557"
            ) from None
        return socket, socket.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0")

    def _run(self) -> None:
        while not (self._stopping.is_set() and self._queue.empty()):
            if self._router.poll(0):
                self._replay()
            try:
                seq, batch = self._queue.get(timeout=_POLL_MS / 1000)
            except queue.Empty:
                continue
            payload = encode_batch(batch)
            self._buffer.append((seq, payload))
            self._pub.send_multipart([b"", seq.to_bytes(8, "big"), payload])

    def _replay(self) -> None:
        """Answer `[identity, b"", first number]` with all batches from there on and an end mark."""
        frames = self._router.recv_multipart()
        if len(frames) != 3 or len(frames[2]) != 8:
            logger.warning("invalid replay request of %d frames", len(frames))
            return
        client, first = frames[0], int.from_bytes(frames[2], "big")
        for seq, payload in self._buffer:
            if seq >= first:
                self._router.send_multipart([client, b"", b"", seq.to_bytes(8, "big"), payload])
        self._router.send_multipart([client, b"", b"", _END_OF_REPLAY, b""])
