"""Ask a backend where it publishes its KV events, and how much its prefix cache holds.

Knows the paths and answers of vLLM, SGLang and the embedded engine. Does not listen to anything.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from ragboost.cache_sync.sources import DISCOVERY_PATHS, EventSource, find_sources
from ragboost.config import EngineHookSettings
from ragboost.errors import ConfigError
from ragboost.proxy.upstream.backends import Backend

_LABEL = re.compile(r'(\w+)="([^"]*)"')
_CAPACITY_GAUGES = ("sglang:max_total_num_tokens", "ragboost_engine_kv_cache_capacity_tokens")


class Discovered(NamedTuple):
    """What a backend says of itself.

    Attributes:
        is_up: it answered every question. One that was coming up while it was asked did not, and
            what it said may not be all.
        sources: of its KV events; empty where it publishes none that can be reached.
        capacity_tokens: of its prefix cache; None where it does not say.
    """

    is_up: bool
    sources: tuple[EventSource, ...] = ()
    capacity_tokens: int | None = None


async def discover(backend: Backend) -> Discovered:
    """Ask a backend; it need not be up."""
    answers: list[Mapping[str, Any]] = []
    sources: list[EventSource] = []
    is_up = True
    for path in DISCOVERY_PATHS:
        body = await backend.fetch(path)
        is_up = is_up and body is not None
        if body and (answer := _as_object(body)):
            answers.append(answer)
            sources = sources or _sources(answer, backend)
    capacity = next(filter(None, map(_told_capacity, answers)), None)
    if is_up and capacity is None:
        metrics = await backend.fetch("/metrics")
        is_up = metrics is not None
        capacity = read_capacity((metrics or b"").decode("utf-8", "replace"))
    return Discovered(is_up, tuple(sources), capacity)


def configured(settings: EngineHookSettings, backend: Backend) -> EventSource | None:
    """The source that the settings name for a single backend; None if they name none.

    Raises:
        ConfigError: the address is none.
    """
    if settings.endpoint is None:
        return None
    return EventSource(
        f"{backend.name}/0",
        settings.endpoint,
        replay_endpoint=settings.replay_endpoint,
        topic=settings.topic,
        bind=settings.bind,
    )


def read_capacity(metrics: str) -> int | None:
    """Tokens that the prefix cache holds, from metrics in Prometheus text format."""
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


def _as_object(body: bytes) -> Mapping[str, Any] | None:
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return answer if isinstance(answer, dict) else None


def _sources(answer: Mapping[str, Any], backend: Backend) -> list[EventSource]:
    try:
        return find_sources(answer, backend_url=backend.url, name=backend.name)
    except ConfigError:
        return []  # not an address that we can use: the backend publishes for somebody else


def _told_capacity(answer: Mapping[str, Any]) -> int | None:
    told = answer.get("max_total_num_tokens")  # SGLang's /server_info
    return told if isinstance(told, int) and told > 0 else None
