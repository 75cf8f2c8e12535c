"""KV events over ZeroMQ, framed as vLLM frames them: [topic, seq u64 big endian, msgpack]."""

import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec
import zmq

_END = (-1).to_bytes(8, "big", signed=True)


class EventPublisher:
    """PUB and ROUTER on loopback in a thread, as in vLLM. Frames are numbered from 0.

    Args:
        ports: of events and replay, for an engine that comes back; 0 picks free ones.
        deliver: numbers of the batches to send when this one is published: none loses it, and
            later ones may bring it late, again or out of order. A replay has them all.
    """

    def __init__(
        self,
        topic: str = "kv-events",
        *,
        ports: tuple[int, int] = (0, 0),
        deliver: Callable[[int], list[int]] = lambda seq: [seq],
    ) -> None:
        self.topic = topic
        self.frames: deque[tuple[bytes, bytes, bytes]] = deque(maxlen=10_000)
        self.deliver = deliver
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._pub, self.port = self._bind(zmq.PUB, ports[0])
        self._router, self.replay_port = self._bind(zmq.ROUTER, ports[1])
        self.endpoint = f"tcp://127.0.0.1:{self.port}"
        self.replay_endpoint = f"tcp://127.0.0.1:{self.replay_port}"
        self._seq = 0
        self._queue: queue.Queue[bytes | None] = queue.Queue()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def num_published(self) -> int:
        """Batches sent or dropped; -1 while some are on their way."""
        return self._seq if self._queue.unfinished_tasks == 0 else -1

    @property
    def source(self) -> dict[str, Any]:
        """An entry of `/kv_event_sources`."""
        return {
            "publisher": "zmq",
            "endpoint": self.endpoint,
            "replay_endpoint": self.replay_endpoint,
            "topic": self.topic,
        }

    def publish(self, events: list[dict[str, Any]]) -> None:
        """Send one batch."""
        self._queue.put(msgspec.msgpack.encode([time.time(), events, 0]))

    def close(self) -> None:
        """Close the sockets and their context."""
        self._queue.put(None)
        self._thread.join(10)
        self._context.destroy(linger=0)

    def _bind(self, kind: int, port: int) -> tuple["zmq.Socket[bytes]", int]:
        made = self._context.socket(kind)
        made.setsockopt(zmq.LINGER, 0)
        made.bind(f"tcp://127.0.0.1:{port or '*'}")
        return made, int(made.getsockopt_string(zmq.LAST_ENDPOINT).rpartition(":")[2])

    def _run(self) -> None:
        while True:
            if self._router.poll(0):
                self._answer()
            try:
                payload = self._queue.get(timeout=0.01)
            except queue.Empty:
                continue
            if payload is None:
                return
            frame = (self.topic.encode(), self._seq.to_bytes(8, "big"), payload)
            self.frames.append(frame)
            self._seq += 1
            for number in self.deliver(self._seq - 1):
                self._pub.send_multipart(self.frames[number - self._seq])
            self._queue.task_done()

    def _answer(self) -> None:
        client, _, start = self._router.recv_multipart()
        for topic, seq, payload in self.frames:
            if seq >= start:
                self._router.send_multipart([client, b"", topic, seq, payload])
        self._router.send_multipart([client, b"", b"", _END, b""])
