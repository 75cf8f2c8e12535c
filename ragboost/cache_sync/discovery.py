"""Ask an engine (vLLM, SGLang, embedded) where it publishes KV events, and for its cache's size."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol
from urllib.parse import urlsplit

from ragboost.config import EngineHookSettings
from ragboost.errors import ConfigError
from ragboost.util.jsonl import json_value

DISCOVERY_PATHS = ("/kv_event_sources", "/server_info")
"""Routes of vLLM and SGLang that return a JSON object for `find_sources`."""

_SCHEMES = ("tcp://", "ipc://", "inproc://")
_WILDCARDS = ("*", "0.0.0.0", "[::]", "::")
_LABEL = re.compile(r'(\w+)="([^"]*)"')
_CAPACITY_GAUGES = ("sglang:max_total_num_tokens", "ragboost_engine_kv_cache_capacity_tokens")


class EngineClient(Protocol):
    """An HTTP client of one engine's server, whose name is unique among the backends of a proxy."""

    @property
    def name(self) -> str: ...
    @property
    def url(self) -> str: ...
    @property
    def is_healthy(self) -> bool: ...
    @property
    def rank(self) -> int | None: ...

    async def fetch(self, path: str, *, body: bytes | None = None) -> bytes | None:
        """GET a path, or POST a JSON body to it, and return the body of a small response.

        None if the server cannot be reached; empty if the status is not 200.
        """


@dataclass(frozen=True)
class EventSource:
    """The address of one publisher, that is, of one data-parallel rank of a replica."""

    name: str  # unique among the streams of a proxy, such as `replica-0/0`
    endpoint: str  # ZeroMQ address of the events
    replay_endpoint: str | None = None  # ZeroMQ address of replays; None: a gap clears the mirror
    topic: str = ""  # prefix of the topics to subscribe to
    # Bind the endpoint, for an engine that connects to it, as vLLM to `tcp://HOST:PORT`.
    bind: bool = False
    is_wildcard: bool = False  # the engine says that it listens, on all addresses of its machine

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

    @property
    def rank(self) -> int | None:
        rank = self.name.rpartition("/")[2]
        return int(rank) if rank.isascii() and rank.isdecimal() else None

    def silence(self, *, is_connected: bool) -> str:
        """Explain why nothing arrives from this publisher, and name the way out, without hosts."""
        if is_connected:
            return (
                "connected, but no event has arrived; if the engine has answered requests, switch "
                f"its KV events on, with a topic that begins with {self.topic!r}"
            )
        port = self.endpoint.rpartition(":")[2] if self.endpoint.startswith("tcp://") else "PORT"
        if self.bind:
            return f"no engine has connected to port {port}"
        if self.is_wildcard:
            return (
                f"nothing can be reached at port {port}, where the engine says that it listens: "
                "open the port to this machine, or use the hook"
            )
        return (
            f"nothing listens at port {port}: vLLM and SGLang connect to an address with a host "
            f"instead of listening there; start the engine with tcp://*:{port}, or use the hook"
        )


class Discovery(NamedTuple):
    # Every request got a response. False also while the engine is starting, when the rest may be
    # incomplete.
    is_up: bool
    # Of KV events; empty if it publishes none that can be reached.
    sources: tuple[EventSource, ...] = ()
    capacity_tokens: int | None = None  # of the prefix cache; None if not reported


async def discover(engine: EngineClient) -> Discovery:
    """Ask an engine, which may be down, for its event sources and its capacity."""
    answers: list[Mapping[str, Any]] = []
    sources: list[EventSource] = []
    is_up = True
    for path in DISCOVERY_PATHS:
        body = await engine.fetch(path)
        is_up = is_up and body is not None
        answer = json_value(body or b"")
        if isinstance(answer, dict):
            answers.append(answer)
            sources = sources or _usable_sources(answer, engine)
    capacity = next(filter(None, map(_reported_capacity, answers)), None)
    if is_up and capacity is None:
        metrics = await engine.fetch("/metrics")
        is_up = metrics is not None
        capacity = read_capacity((metrics or b"").decode("utf-8", "replace"))
    return Discovery(is_up, tuple(sources), capacity)


def configured_source(settings: EngineHookSettings, *, name: str) -> EventSource | None:
    """Return the source that the settings name for a single backend, if any."""
    if settings.endpoint is None:
        if settings.replay_endpoint is not None:
            raise ConfigError("engine_hooks.replay_endpoint needs engine_hooks.endpoint")
        return None
    return EventSource(
        name,
        settings.endpoint,
        replay_endpoint=settings.replay_endpoint,
        bind=_host(settings.endpoint) in _WILDCARDS,
    )


def find_sources(answer: Mapping[str, Any], *, backend_url: str, name: str) -> list[EventSource]:
    """Read the event sources from a response; none if the engine publishes no events.

    The backend's host replaces a wildcard address, and the rank is appended to the replica's name.
    A ConfigError is raised for an address that ZeroMQ cannot use.
    """
    host = urlsplit(backend_url).hostname or "127.0.0.1"
    host = f"[{host}]" if ":" in host else host
    events = answer.get("kv_events")
    if isinstance(events, Mapping):
        return _sglang_sources(events, host=host, name=name)
    ranks = [(key, value) for key, value in answer.items() if isinstance(value, Mapping)]
    return [
        EventSource(
            name=f"{name}/{rank}",
            endpoint=_without_wildcard(config["endpoint"], host),
            replay_endpoint=_without_wildcard(config.get("replay_endpoint"), host),
            topic=config.get("topic") or "",
            is_wildcard=_host(config["endpoint"]) in _WILDCARDS,
        )
        for rank, config in ranks
        if config.get("publisher") == "zmq" and isinstance(config.get("endpoint"), str)
    ]


def read_capacity(metrics: str) -> int | None:
    """Read the prefix cache's capacity in tokens from metrics in Prometheus text format."""
    for line in metrics.splitlines():
        name = line.partition("{")[0].partition(" ")[0]
        if name == "vllm:cache_config_info":
            labels = dict(_LABEL.findall(line))
            blocks, size = labels.get("num_gpu_blocks", ""), labels.get("block_size", "")
            if blocks.isdigit() and size.isdigit():
                return (int(blocks) - 1) * int(size) or None  # the first block is a placeholder
        if name in _CAPACITY_GAUGES:
            try:
                return int(float(line.rpartition(" ")[2])) or None
            except (ValueError, OverflowError):
                return None
    return None


def _sglang_sources(events: Mapping[str, Any], *, host: str, name: str) -> list[EventSource]:
    port, replay = events.get("endpoint_port_base"), events.get("replay_endpoint_port_base")
    if events.get("publisher") != "zmq" or not isinstance(port, int):
        return []
    reported = events.get("endpoint_host")
    is_wildcard = reported in _WILDCARDS
    host = reported if isinstance(reported, str) and not is_wildcard else host
    ranks = events.get("dp_size")
    return [
        EventSource(
            name=f"{name}/{rank}",
            endpoint=f"tcp://{host}:{port + rank}",
            replay_endpoint=f"tcp://{host}:{replay + rank}" if isinstance(replay, int) else None,
            topic=events.get("topic") or "",
            is_wildcard=is_wildcard,
        )
        for rank in range(ranks if isinstance(ranks, int) else 1)
    ]


def _without_wildcard(endpoint: Any, host: str) -> Any:
    if isinstance(endpoint, str) and _host(endpoint) in _WILDCARDS:
        return f"tcp://{host}:{endpoint.rpartition(':')[2]}"
    return endpoint


def _host(endpoint: str) -> str:
    """Return the host of a TCP address; empty for another address."""
    return endpoint.removeprefix("tcp://").rpartition(":")[0] if "tcp://" in endpoint else ""


def _usable_sources(answer: Mapping[str, Any], engine: EngineClient) -> list[EventSource]:
    try:
        sources = find_sources(answer, backend_url=engine.url, name=engine.name)
        return [source for source in sources if engine.rank in (None, source.rank)]
    except ConfigError:
        return []  # an address that ZeroMQ cannot use, meant for another subscriber


def _reported_capacity(answer: Mapping[str, Any]) -> int | None:
    reported = answer.get("max_total_num_tokens")  # SGLang's /server_info
    return reported if isinstance(reported, int) and reported > 0 else None
