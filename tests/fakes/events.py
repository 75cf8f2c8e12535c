"""KV events of a FakeEngine, in vLLM's frames, over ZeroMQ on loopback."""

import time
from collections.abc import Callable
from typing import Any

import msgspec

from tests.fakes.publisher import Publisher


class EventPublisher(Publisher):
    """Publisher that a proxy discovers by `/kv_event_sources`.

    Args:
        endpoint: endpoint of the events; a restarted engine passes its former one.
        replay_endpoint: endpoint of the replay, likewise.
        deliver: as in `Publisher`.
        is_connecting: as in `Publisher`.
        announced: endpoint in its answers to a proxy; None: `endpoint`.
    """

    def __init__(
        self,
        endpoint: str = "tcp://127.0.0.1:*",
        *,
        replay_endpoint: str | None = "tcp://127.0.0.1:*",
        deliver: Callable[[int, bytes], list[tuple[int, bytes]]] | None = None,
        is_connecting: bool = False,
        announced: str | None = None,
    ) -> None:
        self._announced = announced
        super().__init__(
            endpoint,
            replay_endpoint=replay_endpoint,
            topic="kv-events",
            deliver=deliver,
            is_connecting=is_connecting,
        )

    @property
    def source(self) -> dict[str, Any]:
        """Entry of `/kv_event_sources`."""
        return {
            "publisher": "zmq",
            "endpoint": self._announced or self.endpoint,
            "replay_endpoint": self.replay_endpoint,
            "topic": self.topic,
        }

    def publish_events(self, events: list[dict[str, Any]]) -> None:
        """Publish one batch."""
        self.publish_payload(msgspec.msgpack.encode([time.time(), events, 0]))
