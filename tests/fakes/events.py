"""The KV events of a FakeEngine: vLLM's frames, on ports of loopback."""

import time
from collections.abc import Callable
from typing import Any

import msgspec

from tests.fakes.publisher import Publisher


class EventPublisher(Publisher):
    """A publisher that a proxy can be told of.

    Args:
        endpoint: of the events; of an engine that comes back, the one it had.
        replay_endpoint: of the replay, likewise.
        deliver: see `Publisher`.
    """

    def __init__(
        self,
        endpoint: str = "tcp://127.0.0.1:*",
        *,
        replay_endpoint: str = "tcp://127.0.0.1:*",
        deliver: Callable[[int, bytes], list[tuple[int, bytes]]] | None = None,
    ) -> None:
        super().__init__(
            endpoint,
            replay_endpoint=replay_endpoint,
            topic="kv-events",
            deliver=deliver,
        )

    @property
    def source(self) -> dict[str, Any]:
        """An entry of `/kv_event_sources`."""
        return {
            "publisher": "zmq",
            "endpoint": self.endpoint,
            "replay_endpoint": self.replay_endpoint,
            "topic": self.topic,
        }

    def publish_events(self, events: list[dict[str, Any]]) -> None:
        """Send one batch."""
        self.publish_payload(msgspec.msgpack.encode([time.time(), events, 0]))
