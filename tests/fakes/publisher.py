"""Event publisher with the sockets and behaviour of the engines', which can lose frames."""

import queue
import threading
from collections import deque
from collections.abc import Callable

import zmq

from ragboost.cache_events import EventBatch, encode_batch

END = (-1).to_bytes(8, "big", signed=True)


class Publisher:
    """PUB and ROUTER sockets in one thread, as in vLLM and SGLang.

    Args:
        deliver: returns the frames to send in place of one, in order: none drops it, several repeat
            or reorder.
        has_topic: replayed messages carry the topic (vLLM and current SGLang; not older ones).
        is_mute: the replay endpoint receives requests and never responds.
        max_replayed: frames of a replay, behind which everything is dropped, the end mark too, as a
            ROUTER does for a slow reader.
        is_connecting: connect to the endpoint instead of binding it, as engines do for an address
            without a wildcard.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        replay_endpoint: str | None = None,
        topic: str = "kv@toy",
        buffer_steps: int = 10_000,
        deliver: Callable[[int, bytes], list[tuple[int, bytes]]] | None = None,
        has_topic: bool = True,
        is_mute: bool = False,
        max_replayed: int | None = None,
        is_connecting: bool = False,
    ) -> None:
        self.deliver = deliver or (lambda seq, payload: [(seq, payload)])
        self.is_mute = is_mute
        self._max_replayed = max_replayed
        self._is_connecting = is_connecting
        self.sent = 0
        self.is_subscribed = False
        self.topic, self._has_topic = topic, has_topic
        self.frames: deque[tuple[int, bytes]] = deque(maxlen=buffer_steps)
        self._queue: queue.Queue[bytes | None] = queue.Queue()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        # XPUB is a PUB that reports the first subscription and the end of the last one.
        self._pub, self.endpoint = self._bind(zmq.XPUB, endpoint)
        self._router: zmq.Socket[bytes] | None = None
        self.replay_endpoint: str | None = None
        if replay_endpoint:
            self._router, self.replay_endpoint = self._bind(zmq.ROUTER, replay_endpoint)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def num_published(self) -> int:
        """Batches sent or dropped; -1 while some are queued."""
        return self.sent if self._queue.unfinished_tasks == 0 else -1

    def publish(self, batch: EventBatch) -> None:
        if batch.events:
            self._queue.put(encode_batch(batch))

    def publish_payload(self, payload: bytes) -> None:
        """Publish an encoded batch."""
        self._queue.put(payload)

    def close(self) -> None:
        self._queue.put(None)
        self._thread.join()
        self._context.destroy(linger=0)

    def _bind(self, kind: int, endpoint: str) -> tuple["zmq.Socket[bytes]", str]:
        bound = self._context.socket(kind)
        if kind == zmq.XPUB:  # the engines leave their ROUTER's at libzmq's 1,000
            bound.set_hwm(100_000)
        if self._is_connecting and kind == zmq.XPUB:
            bound.connect(endpoint)
        else:
            bound.bind(endpoint)
        return bound, bound.getsockopt_string(zmq.LAST_ENDPOINT)

    def _run(self) -> None:
        while True:
            while self._pub.poll(0):
                self.is_subscribed = self._pub.recv().startswith(b"\x01")
            if self._router is not None and self._router.poll(0):
                self._replay(self._router)
            try:
                payload = self._queue.get(timeout=0.01)
            except queue.Empty:
                continue
            if payload is None:
                return
            for seq, frame in self.deliver(self.sent, payload):
                self._pub.send_multipart([self.topic.encode(), seq.to_bytes(8, "big"), frame])
            self.frames.append((self.sent, payload))
            self.sent += 1
            self._queue.task_done()

    def _replay(self, router: "zmq.Socket[bytes]") -> None:
        client, _, start = router.recv_multipart()
        if self.is_mute:
            return
        topic = [self.topic.encode()] if self._has_topic else []
        wanted = [frame for frame in self.frames if frame[0] >= int.from_bytes(start, "big")]
        for seq, payload in wanted[: self._max_replayed]:
            router.send_multipart([client, b"", *topic, seq.to_bytes(8, "big"), payload])
        if self._max_replayed is None or len(wanted) <= self._max_replayed:
            router.send_multipart([client, b"", *([b""] if topic else []), END, b""])
