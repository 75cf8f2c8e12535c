"""Make clients for a Redis or Valkey server, whatever is kept there.

Knows what a server that is damaged may do: send replies of any kind, and without end.
"""

from typing import Any

from ragboost.errors import ConfigError, import_extra

_FORMS = "redis://[[USER]:PASSWORD@]HOST:PORT[/DATABASE], rediss:// for TLS, unix://PATH"
# Of one read of a blocking client, whose values are megabytes: with redis-py's 64 KiB, reading one
# takes three times as long.
_READ_BYTES = 1 << 20
_ELEMENT_BYTES = 64  # what Python needs for an element of a reply, at least
_MAX_DEPTH = 16  # of lists in lists


def redis_errors() -> tuple[type[Exception], ...]:
    """Return the exceptions of a server that is down, full, or sends what nobody asked for.

    redis-py interprets replies without checking them, hence those behind the first three.
    """
    error = import_extra("redis.exceptions", extra="redis").RedisError
    shapes = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)
    return (error, OSError, EOFError, *shapes, AssertionError)


def make_redis(
    address: str, *, problem: str, timeout_s: float, is_async: bool, max_reply_bytes: int
) -> Any:
    """Return a client that connects when it is used.

    A connection may have been closed while idle, so a command is sent once more: all commands must
    be such that they may be repeated.

    Args:
        problem: begins the message for a bad address.
        max_reply_bytes: a larger reply is an error, and not read.
    """
    module = "redis.asyncio" if is_async else "redis"
    client = import_extra(module, extra="redis")
    retry = import_extra(f"{module}.retry", extra="redis")
    backoff = import_extra("redis.backoff", extra="redis")
    bounded = _async_parser if is_async else _blocking_parser
    options = {} if is_async else {"socket_read_size": _READ_BYTES}
    try:
        return client.Redis.from_url(
            address,
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            retry=retry.Retry(backoff.NoBackoff(), 1),
            protocol=2,
            parser_class=bounded(max_reply_bytes),
            **options,
        )
    except ValueError:  # its message may quote the password
        raise ConfigError(f"{problem} {_FORMS}") from None


class _Allowance:
    """The bytes that a reply may still have, and the lists that it is in."""

    def __init__(self, num_bytes: int) -> None:
        self._whole = num_bytes
        self.renew()

    def renew(self) -> None:
        self._left, self.depth = self._whole, 0

    def spend(self, num_bytes: int) -> None:
        self._left -= num_bytes
        if num_bytes < 0 or self._left < 0 or self.depth > _MAX_DEPTH:
            error = import_extra("redis.exceptions", extra="redis").InvalidResponse
            raise error(f"a reply of more than {self._whole} bytes or {_MAX_DEPTH} levels")


def _async_parser(max_bytes: int) -> type:
    parsers = import_extra("redis._parsers", extra="redis")

    class BoundedParser(parsers._AsyncRESP2Parser):  # type: ignore[misc,name-defined]
        def __init__(self, socket_read_size: int) -> None:
            super().__init__(socket_read_size)
            self._allowance = _Allowance(max_bytes)

        async def read_response(self, *args: Any, **options: Any) -> Any:
            self._allowance.renew()
            return await super().read_response(*args, **options)

        async def _read_response(self, *args: Any, **options: Any) -> Any:
            self._allowance.depth += 1
            reply = await super()._read_response(*args, **options)
            self._allowance.depth -= 1
            return reply

        async def _readline(self) -> bytes:
            self._allowance.spend(_ELEMENT_BYTES)
            line: bytes = await super()._readline()
            return line

        async def _read(self, length: int) -> bytes:
            self._allowance.spend(length)
            value: bytes = await super()._read(length)
            return value

    return BoundedParser


def _blocking_parser(max_bytes: int) -> type:
    parsers = import_extra("redis._parsers", extra="redis")

    class BoundedParser(parsers._RESP2Parser):  # type: ignore[misc,name-defined]
        def __init__(self, socket_read_size: int) -> None:
            super().__init__(socket_read_size)
            self._allowance = _Allowance(max_bytes)

        def on_connect(self, connection: Any) -> None:
            super().on_connect(connection)
            read, readline = self._buffer.read, self._buffer.readline

            def bounded_read(length: int, **options: Any) -> Any:
                self._allowance.spend(length)
                return read(length, **options)

            def bounded_readline(**options: Any) -> Any:
                self._allowance.spend(_ELEMENT_BYTES)
                return readline(**options)

            self._buffer.read, self._buffer.readline = bounded_read, bounded_readline

        def read_response(self, *args: Any, **options: Any) -> Any:
            self._allowance.renew()
            return super().read_response(*args, **options)

        def _read_response(self, *args: Any, **options: Any) -> Any:
            self._allowance.depth += 1
            reply = super()._read_response(*args, **options)
            self._allowance.depth -= 1
            return reply

    return BoundedParser
