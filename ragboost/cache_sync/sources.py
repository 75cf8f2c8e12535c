"""Where a backend publishes its KV events, as it says itself.

Reads the answers of vLLM's `/kv_event_sources` and SGLang's `/server_info`. Does not fetch them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from ragboost.errors import ConfigError

DISCOVERY_PATHS = ("/kv_event_sources", "/server_info")
"""What to GET from a backend, one after the other; pass the first JSON object to `find_sources`."""

_SCHEMES = ("tcp://", "ipc://", "inproc://")
_WILDCARDS = ("*", "0.0.0.0", "[::]", "::")


@dataclass(frozen=True)
class EventSource:
    """One publisher: a replica's data-parallel rank.

    Attributes:
        name: unique among the streams of a proxy, such as `replica-0/0`.
        endpoint: ZeroMQ address of the events.
        replay_endpoint: ZeroMQ address for replays; None: a gap empties the mirror.
        topic: only messages of topics that begin with this.
        bind: whether we listen and the engine connects, as vLLM does for `tcp://HOST:PORT`.
    """

    name: str
    endpoint: str
    replay_endpoint: str | None = None
    topic: str = ""
    bind: bool = False

    def __post_init__(self) -> None:
        for field in ("endpoint", "replay_endpoint"):
            value = getattr(self, field)
            if value is None and field == "replay_endpoint":
                continue
            if not isinstance(value, str) or not value.startswith(_SCHEMES):
                raise ConfigError(
                    f"{field} of KV event stream {self.name!r} must begin with tcp:// or ipc://, "
                    f"got {value!r}"
                )

    def rank(self, rank: int) -> "EventSource":
        """The source of another data-parallel rank: engines add the rank to the port."""
        if rank == 0:
            return self
        return EventSource(
            name=f"{self.name}/{rank}",
            endpoint=_offset(self.endpoint, rank),
            replay_endpoint=self.replay_endpoint and _offset(self.replay_endpoint, rank),
            topic=self.topic,
            bind=self.bind,
        )


def find_sources(answer: Mapping[str, Any], *, backend_url: str, name: str) -> list[EventSource]:
    """Read where events come from; empty where the backend publishes none that can be reached.

    Args:
        answer: the JSON object that one of `DISCOVERY_PATHS` gave.
        backend_url: its host takes the place of a wildcard address.
        name: of the replica; the rank is added.
    """
    host = urlsplit(backend_url).hostname or "127.0.0.1"
    host = f"[{host}]" if ":" in host else host
    events = answer.get("kv_events")
    if isinstance(events, Mapping):
        return _from_sglang(events, host=host, name=name)
    ranks = [(key, value) for key, value in answer.items() if isinstance(value, Mapping)]
    return [
        EventSource(
            name=f"{name}/{rank}",
            endpoint=_reachable(config["endpoint"], host),
            replay_endpoint=_reachable(config.get("replay_endpoint"), host),
            topic=config.get("topic") or "",
        )
        for rank, config in ranks
        if config.get("publisher") == "zmq" and isinstance(config.get("endpoint"), str)
    ]


def _from_sglang(events: Mapping[str, Any], *, host: str, name: str) -> list[EventSource]:
    port, replay = events.get("endpoint_port_base"), events.get("replay_endpoint_port_base")
    if events.get("publisher") != "zmq" or not isinstance(port, int):
        return []
    told = events.get("endpoint_host")
    host = told if isinstance(told, str) and told not in _WILDCARDS else host
    ranks = events.get("dp_size")
    return [
        EventSource(
            name=f"{name}/{rank}",
            endpoint=f"tcp://{host}:{port + rank}",
            replay_endpoint=f"tcp://{host}:{replay + rank}" if isinstance(replay, int) else None,
            topic=events.get("topic") or "",
        )
        for rank in range(ranks if isinstance(ranks, int) else 1)
    ]


def _reachable(endpoint: Any, host: str) -> Any:
    if isinstance(endpoint, str) and endpoint.startswith("tcp://"):
        address, _, port = endpoint.removeprefix("tcp://").rpartition(":")
        if address in _WILDCARDS:
            return f"tcp://{host}:{port}"
    return endpoint


def _offset(endpoint: str, rank: int) -> str:
    if endpoint.startswith("inproc://"):
        return f"{endpoint}_dp{rank}"
    base, _, port = endpoint.rpartition(":")
    if not endpoint.startswith("tcp://") or not port.isdigit():
        raise ConfigError(f"rank {rank} has no endpoint: {endpoint!r} has no port to count from")
    return f"{base}:{int(port) + rank}"
