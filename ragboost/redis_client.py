"""Make clients for a Redis or Valkey server, whatever is kept there."""

from typing import Any

from ragboost.errors import ConfigError, import_extra

_FORMS = "redis://[[USER]:PASSWORD@]HOST:PORT[/DATABASE], rediss:// for TLS, unix://PATH"
# Of one read of a blocking client, whose values are megabytes: with redis-py's 64 KiB, reading one
# takes three times as long.
_READ_BYTES = 1 << 20


def make_redis(address: str, *, problem: str, timeout_s: float, is_async: bool) -> Any:
    """Return a client that connects when it is used; `problem` begins the message for a bad
    address.

    A connection may have been closed while idle, so a command is sent once more: all commands must
    be such that they may be repeated.
    """
    module = "redis.asyncio" if is_async else "redis"
    client = import_extra(module, extra="redis")
    options = {} if is_async else {"socket_read_size": _READ_BYTES}
    retry = import_extra(f"{module}.retry", extra="redis")
    backoff = import_extra("redis.backoff", extra="redis")
    try:
        return client.Redis.from_url(
            address,
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            retry=retry.Retry(backoff.NoBackoff(), 1),
            **options,
        )
    except ValueError:  # its message may quote the password
        raise ConfigError(f"{problem} {_FORMS}") from None
