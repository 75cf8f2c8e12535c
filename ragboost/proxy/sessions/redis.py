"""Chat sessions in a Redis or Valkey server, shared by proxies on several machines.

Keys behind the prefix: `session:ID` a hash, `turns:ID` a list, `deleted:ID` after a deletion,
`list:DIGEST` the ids of an owner's user by creation, and over all sessions `by_use`, `sizes`,
`lists` and `bytes`, the sum of the sizes. Sessions expire by themselves, what is kept about all of
them when it is trimmed. Every change is one transaction that watches `session:ID`.
"""

import asyncio
import hashlib
import json
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

from ragboost.config import SessionSettings
from ragboost.errors import ConfigError, SessionStoreError, import_extra
from ragboost.proxy.sessions.store import ChatSession, ChatSessionStore, Page, Transcript
from ragboost.util.redis_client import make_redis, redis_errors

_PROBE_MS = 1000
_TIMEOUT_S = 5.0
_CHANGE_TIMEOUT_S = 10.0  # with all its attempts
_ATTEMPTS = 100
_PAGE = 100
_MORE_REPLY_BYTES = 64 << 20  # beyond the bound of all sessions, which one session alone may exceed

T = TypeVar("T")

# Accounts for one session, whose size is 0 when it is gone, and drops those beyond the bounds. What
# is deleted goes first: a full server refuses the accounting.
_ACCOUNT = """
local prefix, now, ttl = ARGV[1], ARGV[2], tonumber(ARGV[3])
local max_sessions, max_bytes = tonumber(ARGV[4]), tonumber(ARGV[5])
local id, size, list, created_at = ARGV[6], tonumber(ARGV[7]), ARGV[8], ARGV[9]
local function key(kind, name) return prefix .. kind .. (name and ':' .. name or '') end

local function drop(name)
  redis.call('DEL', key('session', name), key('turns', name))
  local whose = redis.call('HGET', key('lists'), name)
  if whose then redis.call('ZREM', key('list', whose), name) end
  redis.call('DECRBY', key('bytes'), redis.call('HGET', key('sizes'), name) or 0)
  redis.call('HDEL', key('lists'), name)
  redis.call('HDEL', key('sizes'), name)
  redis.call('ZREM', key('by_use'), name)
end

if size == 0 then
  drop(id)
  return 1
end
redis.call('INCRBY', key('bytes'), size - (redis.call('HGET', key('sizes'), id) or 0))
redis.call('HSET', key('sizes'), id, size)
redis.call('ZADD', key('by_use'), now, id)
if list ~= '' then
  redis.call('HSET', key('lists'), id, list)
  redis.call('ZADD', key('list', list), created_at, id)
end
local expired = {'-inf', string.format('(%.6f', now - ttl), 'LIMIT', 0, 100}
for _, name in ipairs(redis.call('ZRANGEBYSCORE', key('by_use'), unpack(expired))) do
  drop(name)
end
while redis.call('ZCARD', key('by_use')) > max_sessions
    or tonumber(redis.call('GET', key('bytes'))) > max_bytes do
  local oldest = redis.call('ZRANGE', key('by_use'), 0, 1)
  if oldest[1] == id then table.remove(oldest, 1) end
  if not oldest[1] then break end
  drop(oldest[1])
end
local ms = math.ceil(ttl * 1000)
redis.call('PEXPIRE', key('session', id), ms)
redis.call('PEXPIRE', key('turns', id), ms)
for _, kind in ipairs({'by_use', 'lists', 'sizes', 'bytes'}) do
  redis.call('PEXPIRE', key(kind), 2 * ms)
end
if list ~= '' then redis.call('PEXPIRE', key('list', list), 2 * ms) end
return 1
"""


class RedisStore(ChatSessionStore):
    """Sessions in Redis; a server that cannot be reached is not an error at the start."""

    is_shared = True
    connects_replicas = True

    def __init__(self, settings: SessionSettings, **options: Any) -> None:
        super().__init__(settings, **options)
        size = self._max_bytes + _MORE_REPLY_BYTES
        self._client = make_client(settings, max_reply_bytes=size)
        self._prefix = f"{settings.prefix}:sessions:"
        self._errors = redis_errors()
        errors = import_extra("redis.exceptions", extra="redis")
        self._full, self._conflict = errors.OutOfMemoryError, errors.WatchError

    async def open(self) -> None:
        try:
            await self.check()
        except SessionStoreError:  # logged; the rest of the proxy works without it
            return

    async def close(self) -> None:
        await self._client.aclose()

    async def check(self) -> None:
        """Write something: a server that is full, or a replica, still reads and answers pings."""

        async def probe() -> None:
            if not await self._client.set(self._key("probe"), b"", px=_PROBE_MS):
                raise ValueError("Redis does not confirm a write")

        await self._write(probe())

    async def create(self, session: ChatSession) -> None:
        async def plan(transaction: Any) -> bool:
            self._put(transaction, session, ())
            return True

        await self._write(self._change(session, plan))

    async def read(self, owner: str, session_id: str) -> Transcript | None:
        async def both() -> tuple[ChatSession | None, list[bytes]]:
            # No transaction, which a full server refuses.
            commands = self._client.pipeline(transaction=False)
            commands.hgetall(self._key("session", session_id))
            commands.lrange(self._key("turns", session_id), 0, -1)
            fields, turns = await commands.execute()
            return self._find(owner, session_id, fields), _all_bytes(turns)

        session, turns = await self._run(both())
        # Another proxy may have added a turn in between.
        return Transcript(session, turns[: session.num_turns]) if session else None

    async def append(self, session: ChatSession, turn: bytes) -> bool:
        async def plan(transaction: Any) -> bool:
            num_turns = await self._num_turns(transaction, session)
            if num_turns == session.num_turns + 1:
                return await self._is_last(transaction, session, turn)
            if num_turns is None or num_turns != session.num_turns:
                return False
            size = int(await transaction.hget(self._key("sizes"), session.id) or 0)
            used = {"num_turns": num_turns + 1, "used_at": repr(self._clock())}
            transaction.multi()
            transaction.rpush(self._key("turns", session.id), turn)
            transaction.hset(self._key("session", session.id), mapping=used)
            self._account(transaction, session, size=size + len(turn))
            return True

        return await self._write(self._change(session, plan))

    async def restore(self, session: ChatSession, turns: Sequence[bytes]) -> bool:
        session = replace(session, num_turns=len(turns), used_at=self._clock())

        async def plan(transaction: Any) -> bool:
            num_turns = await self._num_turns(transaction, session)
            if num_turns is not None:
                is_same = num_turns == len(turns)
                return is_same and await self._is_last(transaction, session, turns[-1])
            if await transaction.exists(self._key("deleted", session.id)):
                return False
            self._put(transaction, session, turns)
            return True

        return await self._write(self._change(session, plan))

    async def delete(self, owner: str, session_id: str) -> bool:
        """Delete a session, also from a full server, which refuses marks and transactions."""
        session = ChatSession(session_id, owner, 0.0, 0.0)

        async def delete() -> bool:
            if await self._num_turns(self._client, session) is None:
                return False
            mark, ttl_ms = self._key("deleted", session_id), math.ceil(self._settings.ttl_s * 1000)
            with suppress(self._full):  # then no running turn can bring it back, either
                await self._client.set(mark, b"", px=ttl_ms)
            with suppress(self._full):  # the accounting follows when the session would expire
                await self._account(self._client, session, size=0)
            return True

        return await self._run(delete())

    async def list(
        self, owner: str, user: str, *, limit: int, after: str | None = None
    ) -> Page | None:
        return await self._run(self._list(owner, user, limit, after))

    async def _list(self, owner: str, user: str, limit: int, after: str | None) -> Page | None:
        key, first = self._key("list", _list_name(owner, user)), 0
        if after is not None:
            before = await self._get(owner, after)
            if before is None or before.user != user:
                return None
            rank = await self._client.zrevrank(key, after)
            first = 0 if rank is None else rank + 1
        found: list[ChatSession] = []
        for start in range(first, first + self._settings.max_sessions, _PAGE):
            ids = _all_bytes(await self._client.zrevrange(key, start, start + _PAGE - 1))
            sessions = [await self._get(owner, name.decode()) for name in ids]
            found += [session for session in sessions if session is not None]
            if len(found) > limit or len(ids) < _PAGE:
                break
        return Page(found[:limit], len(found) > limit)

    async def _get(self, owner: str, session_id: str) -> ChatSession | None:
        fields = await self._client.hgetall(self._key("session", session_id))
        return self._find(owner, session_id, fields)

    def _find(
        self, owner: str, session_id: str, fields: Mapping[bytes, bytes]
    ) -> ChatSession | None:
        session = _session(session_id, fields)
        if session is None or session.owner != owner or session.used_at < self._earliest():
            return None
        return session

    async def _num_turns(self, client: Any, session: ChatSession) -> int | None:
        """Return the number of a session's turns; None if it is unknown."""
        key = self._key("session", session.id)
        found = await client.hmget(key, "owner", "used_at", "num_turns")
        owner, used_at, num_turns = found
        try:
            is_known = owner == _text(session.owner) and float(used_at) >= self._earliest()
            return int(num_turns) if is_known else None
        except (ValueError, TypeError):
            return None  # as for `read`

    async def _is_last(self, transaction: Any, session: ChatSession, turn: bytes) -> bool:
        """Return True if this turn is stored: the response to a first attempt was lost."""
        stored: object = await transaction.lindex(self._key("turns", session.id), -1)
        return stored == turn

    def _put(self, transaction: Any, session: ChatSession, turns: Sequence[bytes]) -> None:
        fields, name = _fields(session), session.id
        size = sum(len(fields[field]) for field in ("user", "model", "system", "metadata"))
        transaction.multi()
        transaction.delete(*(self._key(kind, name) for kind in ("session", "turns", "deleted")))
        transaction.hset(self._key("session", name), mapping=fields)
        if turns:
            transaction.rpush(self._key("turns", name), *turns)
        self._account(transaction, session, size=size + sum(map(len, turns)))

    def _account(self, client: Any, session: ChatSession, *, size: int) -> Any:
        bounds, user = self._settings, session.user
        arguments = (bounds.ttl_s, bounds.max_sessions, self._max_bytes, session.id, size)
        of_user = "" if user is None else _list_name(session.owner, user)
        created_at = repr(session.created_at)
        return client.eval(
            _ACCOUNT, 0, self._prefix, self._clock(), *arguments, of_user, created_at
        )

    async def _change(self, session: ChatSession, plan: Callable[[Any], Awaitable[bool]]) -> bool:
        """Run a transaction, again if the session has changed since `plan` has read it.

        `plan` returns False if there is nothing to change, and True if it has queued commands, or
        all is done.
        """
        keys = [self._key(kind, session.id) for kind in ("session", "deleted")]
        async with asyncio.timeout(_CHANGE_TIMEOUT_S), self._client.pipeline() as transaction:
            for _ in range(_ATTEMPTS):
                with suppress(self._conflict):
                    await transaction.watch(*keys)
                    if not await plan(transaction):
                        return False
                    replies = await transaction.execute()
                    if not all(isinstance(reply, int) for reply in replies):
                        raise TypeError("Redis does not confirm a transaction")
                    return True
        raise self._conflict(f"session {session.id} changes all the time")

    async def _write(self, answer: Awaitable[T]) -> T:
        result = await self._run(answer)
        if self.problem is not None:
            self._worked()
        return result

    async def _run(self, answer: Awaitable[T]) -> T:
        try:
            return await answer
        except self._errors as error:
            raise self._failed(error, f"Redis: {type(error).__name__}") from error

    def _key(self, *parts: str) -> str:
        return self._prefix + ":".join(parts)


def make_client(settings: SessionSettings, *, max_reply_bytes: int) -> Any:
    if settings.url is None:
        raise ConfigError("session.url is missing: the address of Redis, such as redis://HOST:6379")
    return make_redis(
        settings.url.get_secret_value(),
        problem="session.url is not a URL of Redis:",
        timeout_s=_TIMEOUT_S,
        is_async=True,
        max_reply_bytes=max_reply_bytes,
    )


def _list_name(owner: str, user: str) -> str:
    return hashlib.sha256(_text(f"{owner} {user}")).hexdigest()[:32]


def _text(value: str) -> bytes:
    return value.encode("utf-8", "surrogatepass")


def _all_bytes(reply: Any) -> list[bytes]:
    if not isinstance(reply, list) or not all(isinstance(value, bytes) for value in reply):
        raise TypeError("Redis sent another reply than a list of strings")
    return reply


def _fields(session: ChatSession) -> dict[str, bytes]:
    def optional(value: str | None) -> bytes:
        return b"" if value is None else b"=" + _text(value)

    return {
        "owner": _text(session.owner),
        "created_at": repr(session.created_at).encode(),
        "used_at": repr(session.used_at).encode(),
        "num_turns": str(session.num_turns).encode(),
        "user": optional(session.user),
        "model": optional(session.model),
        "system": optional(session.system),
        "metadata": json.dumps(dict(session.metadata)).encode(),
    }


def _session(session_id: str, fields: Mapping[bytes, bytes]) -> ChatSession | None:
    def text(name: bytes) -> str:
        return fields[name].decode("utf-8", "surrogatepass")

    def optional(name: bytes) -> str | None:
        return text(name)[1:] if fields[name] else None

    _all_bytes([*fields, *fields.values()])
    try:
        session = ChatSession(
            id=session_id,
            owner=text(b"owner"),
            created_at=float(fields[b"created_at"]),
            used_at=float(fields[b"used_at"]),
            num_turns=int(fields[b"num_turns"]),
            user=optional(b"user"),
            model=optional(b"model"),
            system=optional(b"system"),
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
