"""Values in a Redis or Valkey server, in parts: written under a name that expires, and renamed when
whole. Values that nobody reads expire; the server's `maxmemory` bounds them all."""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from ragboost.errors import StoreUnavailableError, import_extra
from ragboost.util.redis_client import make_redis, redis_errors

TTL_S = 7 * 24 * 3600
"""Seconds for which a value is kept after its last use."""
_UNFINISHED_TTL_S = 60
_PART_BYTES = 4 << 20
_TIMEOUT_S = 2.0  # of one message


class RedisDriver:
    """A `RemoteDriver` for redis://[[USER]:PASSWORD@]HOST:PORT[/DATABASE], rediss:// for TLS,
    unix://PATH. A server that cannot be reached is asked again by every verb."""

    max_bytes = 512 << 20  # Redis's limit

    def __init__(self, address: str) -> None:
        self._client = make_redis(
            address,
            problem="a remote store in Redis is",
            timeout_s=_TIMEOUT_S,
            is_async=False,
            max_reply_bytes=2 * _PART_BYTES,
        )
        errors = import_extra("redis.exceptions", extra="redis")
        self._errors = redis_errors()
        self._other_type = errors.ResponseError
        self._full = errors.OutOfMemoryError

    def has(self, name: str) -> bool:
        with self._asking():
            return bool(self._client.exists(_key(name)))

    def get(self, name: str, *, max_bytes: int) -> bytearray | None:
        key, value = _key(name), bytearray()
        with self._asking():
            try:
                size = int(self._client.strlen(key))
            except self._other_type as error:
                if not str(error).startswith("WRONGTYPE"):
                    raise
                return None  # a list, or another thing that is not ours: `put` replaces it
            if not 0 < size <= min(max_bytes, self.max_bytes):
                return None
            for start in range(0, size, _PART_BYTES):
                stop = min(size, start + _PART_BYTES)
                value += self._client.getrange(key, start, stop - 1)
            self._client.expire(key, TTL_S)
        return value

    def put(self, name: str, value: bytes) -> bool:
        key = _key(name)
        unfinished, view = f"{key}:{uuid.uuid4().hex}", memoryview(value)
        try:
            with self._asking():
                for start in range(0, len(view), _PART_BYTES):
                    part = bytes(view[start : start + _PART_BYTES])
                    with self._client.pipeline(transaction=True) as both:  # never without expiry
                        both.setrange(unfinished, start, part)
                        both.expire(unfinished, _UNFINISHED_TTL_S)
                        both.execute()
                with self._client.pipeline(transaction=True) as both:
                    both.rename(unfinished, key)
                    both.expire(key, TTL_S)
                    both.execute()
        except self._full:
            return False
        return True

    def remove(self, name: str) -> None:
        with self._asking():
            self._client.unlink(_key(name))

    def close(self) -> None:
        self._client.close()

    @contextmanager
    def _asking(self) -> Iterator[None]:
        try:
            yield
        except self._full:
            raise
        except self._errors as error:
            raise StoreUnavailableError(f"Redis: {error}") from error


def _key(name: str) -> str:
    return f"{{{name}}}"  # a cluster keeps what is in braces, and its unfinished values, together
