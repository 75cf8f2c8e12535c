"""Chat sessions in a Redis or Valkey server, shared by proxies on several machines.

Every change is one script, so that processes never see half of it.
"""

import json
import logging
import math
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from ragboost.config import SessionSettings
from ragboost.errors import ConfigError, SessionStoreError, import_extra
from ragboost.redis_client import make_redis
from ragboost.sessions.redis_scripts import APPEND, CREATE, DELETE, RESTORE
from ragboost.sessions.store import ChatSession, ChatSessionStore, Page

logger = logging.getLogger(__name__)

_PROBE_MS = 1000
_TIMEOUT_S = 5.0
_PAGE = 100

T = TypeVar("T")


class RedisStore(ChatSessionStore):
    """Sessions in Redis; a server that cannot be reached is not an error at the start."""

    is_shared = True
    connects_replicas = True

    def __init__(self, settings: SessionSettings, **options: Any) -> None:
        super().__init__(settings, **options)
        self._client = make_client(settings)
        self._prefix = f"{settings.prefix}:sessions:"
        self._errors = (import_extra("redis.exceptions", extra="redis").RedisError, OSError)
        self._create, self._append, self._restore, self._delete = (
            self._client.register_script(script) for script in (CREATE, APPEND, RESTORE, DELETE)
        )

    async def open(self) -> None:
        try:
            await self.check()
        except SessionStoreError:  # logged; the rest of the proxy works without it
            return

    async def close(self) -> None:
        await self._client.aclose()

    async def check(self) -> None:
        """Write something: a server that is full, or a replica, still reads and answers pings."""
        await self._write(self._client.set(self._key("probe"), b"", px=_PROBE_MS))

    async def create(self, session: ChatSession) -> None:
        fields = _fields(session)
        await self._run_script(
            self._create, session.id, session.owner, _num_bytes(fields), *_flat(fields)
        )

    async def get(self, owner: str, session_id: str) -> ChatSession | None:
        fields = await self._run(self._client.hgetall(self._key("session", session_id)))
        session = _session(session_id, fields)
        if session is None or session.owner != owner or session.used_at < self._earliest():
            return None
        return session

    async def turns(self, session_id: str) -> list[bytes]:
        key = self._key("turns", session_id)
        turns: list[bytes] = await self._run(self._client.lrange(key, 0, -1))
        return turns

    async def append(self, session: ChatSession, turn: bytes) -> bool:
        arguments = (session.id, session.owner, session.num_turns, turn)
        return bool(await self._run_script(self._append, *arguments))

    async def restore(self, session: ChatSession, turns: Sequence[bytes]) -> bool:
        session = replace(session, num_turns=len(turns), used_at=self._clock())
        fields = _fields(session)
        size, flat = _num_bytes(fields) + sum(map(len, turns)), _flat(fields)
        arguments = (session.id, session.owner, size, len(flat), *flat, *turns)
        return bool(await self._run_script(self._restore, *arguments))

    async def delete(self, owner: str, session_id: str) -> bool:
        return bool(await self._run_script(self._delete, session_id, owner))

    async def list(self, owner: str, *, limit: int, after: str | None = None) -> Page | None:
        key, start = self._key("owner", owner), 0
        if after is not None:
            if await self.get(owner, after) is None:
                return None
            rank = await self._run(self._client.zrevrank(key, after))
            start = 0 if rank is None else rank + 1
        found: list[ChatSession] = []
        while len(found) <= limit:
            ids = await self._run(self._client.zrevrange(key, start, start + _PAGE - 1))
            start += _PAGE
            sessions = [await self.get(owner, name.decode()) for name in ids]
            found += [session for session in sessions if session is not None]
            if len(ids) < _PAGE:
                break
        return Page(found[:limit], len(found) > limit)

    async def _run_script(self, script: Any, *arguments: Any) -> Any:
        bounds = self._settings
        common = (self._prefix, self._clock(), bounds.ttl_s, bounds.max_sessions, bounds.max_bytes)
        return await self._write(script(args=[*common, *arguments]))

    async def _write(self, answer: Awaitable[T]) -> T:
        result = await self._run(answer)
        if self.problem is not None:
            self._worked()
        return result

    async def _run(self, answer: Awaitable[T]) -> T:
        try:
            return await answer
        except self._errors as error:
            raise self._failed(error) from error

    def _key(self, *parts: str) -> str:
        return self._prefix + ":".join(parts)


def make_client(settings: SessionSettings) -> Any:
    if settings.url is None:
        raise ConfigError("session.url is missing: the address of Redis, such as redis://HOST:6379")
    return make_redis(
        settings.url.get_secret_value(),
        problem="session.url is not a URL of Redis:",
        timeout_s=_TIMEOUT_S,
        is_async=True,  # an append that is repeated is known
    )


def _fields(session: ChatSession) -> dict[str, bytes]:
    def text(value: str | None) -> bytes:
        return b"" if value is None else b"=" + value.encode("utf-8", "surrogatepass")

    return {
        "owner": text(session.owner)[1:],
        "created_at": repr(session.created_at).encode(),
        "used_at": repr(session.used_at).encode(),
        "num_turns": str(session.num_turns).encode(),
        "model": text(session.model),
        "system": text(session.system),
        "metadata": json.dumps(dict(session.metadata)).encode(),
    }


def _num_bytes(fields: Mapping[str, bytes]) -> int:
    return sum(len(fields[name]) for name in ("model", "system", "metadata"))


def _flat(fields: Mapping[str, bytes]) -> list[str | bytes]:
    return [part for item in fields.items() for part in item]


def _session(session_id: str, fields: Mapping[bytes, bytes]) -> ChatSession | None:
    def text(value: bytes) -> str | None:
        return value[1:].decode("utf-8", "surrogatepass") if value else None

    try:
        session = ChatSession(
            id=session_id,
            owner=fields[b"owner"].decode("utf-8", "surrogatepass"),
            created_at=float(fields[b"created_at"]),
            used_at=float(fields[b"used_at"]),
            num_turns=int(fields[b"num_turns"]),
            model=text(fields[b"model"]),
            system=text(fields[b"system"]),
            metadata=json.loads(fields[b"metadata"]),
        )
    except (KeyError, ValueError, RecursionError):
        return None
    return session if _is_valid(session) else None


def _is_valid(session: ChatSession) -> bool:
    return (
        isinstance(session.metadata, dict)
        and all(isinstance(value, str) for value in session.metadata.values())
        and math.isfinite(session.created_at + session.used_at)
    )
