"""The proxies that episodes run against: settings, and who calls them with which keys."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ragboost.config import Settings
from ragboost.config.memory import PROCESS_BYTES


@dataclass(frozen=True)
class World:
    """One way to run the proxy.

    Attributes:
        name: for reports.
        sections: settings; the backends are added.
        keys: API keys of the clients; empty: the proxy asks for none.
        num_backends: servers behind the proxy.
        is_ample: nothing is evicted, so that every conversation is remembered.
        dedups: a document is sent once per conversation.
        has_passages: repeated tool results are replaced.
    """

    name: str
    sections: Mapping[str, Any] = field(default_factory=dict)
    keys: Sequence[str] = ()
    num_backends: int = 1
    is_ample: bool = True
    dedups: bool = True
    has_passages: bool = False

    @property
    def needs_redis(self) -> bool:
        return bool(self.sections.get("session", {}).get("store") == "redis")

    def settings(self, urls: Sequence[str], folder: Path, *, redis_url: str | None) -> Settings:
        """Return the settings for these backends, with files in a folder."""
        sections = copy.deepcopy(dict(self.sections))
        # The driver's own limit ends a hanging request; a slow machine is no fault.
        sections["backend"] = {"connect_timeout_s": 60.0, **sections.get("backend", {})}
        if len(urls) == 1:
            sections["backend"]["url"] = urls[0]
        else:
            sections["backends"] = [{"url": url, "name": f"b{i}"} for i, url in enumerate(urls)]
        sections["tokens"] = {"ask_backend": False}
        sections["proxy"] = {"port": 0, "drain_s": 1, **sections.get("proxy", {})}
        if self.keys:
            sections["proxy"]["api_keys"] = list(self.keys)
        if self.needs_redis:
            sections["session"]["url"] = redis_url
        if sections.get("session", {}).get("store") == "sqlite":
            sections["session"]["path"] = folder / "sessions.db"
        return Settings(**sections)


WORLDS = (
    World("as shipped"),
    World("two keys, each shared", keys=("key-one", "key-two")),
    World(
        "waiting room and two backends",
        {"waiting_room": {"mode": "adaptive"}, "backend": {"max_concurrency": 4}},
        num_backends=2,
    ),
    World(
        "SQLite and passages",
        {
            "session": {"store": "sqlite"},
            "dedup": {"passages": True},
        },
        keys=("key-one", "key-two"),
        has_passages=True,
    ),
    World(
        "almost no memory",
        {
            "session": {"max_sessions": 6},
            "proxy": {"memory_bytes": PROCESS_BYTES + 8 * 20_000},
            "index": {"capacity_tokens": 400},
        },
        is_ample=False,
    ),
    World(
        "numbers kept",
        {
            "formats": {"numbers": "keep"},
            "ordering": {"keep_last": 1},
        },
        keys=("key-one",),
    ),
    World("no references", {"dedup": {"enabled": False}}, dedups=False),
)

_NOT_SERVED = ("SQLite and passages", "numbers kept", "no references")
SERVED_WORLDS = (
    *(world for world in WORLDS if world.name not in _NOT_SERVED),
    World("sessions in Redis, tenants", {"session": {"store": "redis"}}, keys=("one", "two")),
    World("stable, receipts", {"stable": "safe", "proxy": {"receipts": True}}),
    World("no evidence", {"formats": {"evidence": False}}),
    World("hold-out", {"boost": {"share": 0.5}}, dedups=False),
)
