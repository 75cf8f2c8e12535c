"""KV events over ZeroMQ, framed as vLLM frames them: [topic, seq u64 big endian, msgpack]."""

import time
from collections import deque
from typing import Any

import msgspec
import zmq


class EventPublisher:
    """A PUB socket on loopback. Frames are numbered from 0 and kept for `replay`."""

    def __init__(self, topic: str = "kv-events", *, dp_rank: int = 0) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PUB)
        self._socket.setsockopt(zmq.LINGER, 0)
        self.port = self._socket.bind_to_random_port("tcp://127.0.0.1")
        self.endpoint = f"tcp://127.0.0.1:{self.port}"
        self.topic = topic
        self.frames: deque[tuple[bytes, bytes, bytes]] = deque(maxlen=10_000)
        self._dp_rank = dp_rank
        self._seq = 0

    def publish(self, events: list[dict[str, Any]]) -> None:
        """Send one batch."""
        payload = msgspec.msgpack.encode([time.time(), events, self._dp_rank])
        frame = (self.topic.encode(), self._seq.to_bytes(8, "big"), payload)
        self._seq += 1
        self.frames.append(frame)
        self._socket.send_multipart(frame)

    def close(self) -> None:
        """Close the socket and its context."""
        self._socket.close()
        self._context.term()
