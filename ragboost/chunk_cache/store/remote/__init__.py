"""Remote stores of chunk KV, one file each, chosen by the scheme of their address."""

import logging
from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType

from ragboost.chunk_cache.store.remote.tier import RemoteDriver, RemoteTier
from ragboost.errors import ConfigError, StoreUnavailableError

logger = logging.getLogger(__name__)

SCHEMES: Mapping[str, str] = MappingProxyType(
    {
        "redis": "redis:RedisDriver",
        "rediss": "redis:RedisDriver",
        "unix": "redis:RedisDriver",
        "mooncake": "mooncake:MooncakeDriver",
    }
)
"""Module and class of each scheme; a driver is imported when it is asked for."""


def check_address(address: str) -> str:
    """Return an address's scheme. The `ConfigError` quotes nothing: it may hold a password."""
    scheme, separator, rest = address.partition("://")
    if scheme not in SCHEMES or not separator or not rest:
        raise ConfigError(
            f"a remote store is one of {', '.join(f'{name}://...' for name in SCHEMES)}"
        )
    return scheme


def join_remote(address: str) -> RemoteTier | None:
    """Return the store at an address such as redis://HOST:6379 or mooncake://HOST:50051; None
    without one, or if it cannot be joined until the next start. Raises `ConfigError`,
    `MissingExtraError`."""
    if not address:
        return None
    module, _, name = SCHEMES[check_address(address)].partition(":")
    try:
        driver: RemoteDriver = getattr(import_module(f"{__name__}.{module}"), name)(address)
    except StoreUnavailableError as error:
        logger.warning("no remote store of chunk KV until the next start: %s", error)
        return None
    return RemoteTier(driver)
