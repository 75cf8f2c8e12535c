"""Values in a Mooncake Store, which pools the memory of several machines. The client keeps nothing
itself. A deletion may be refused while a value was just read."""

import os
import socket
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from ragboost.errors import ConfigError, StoreUnavailableError, import_extra

_BUFFER_BYTES = 256 << 20  # of the client, for values on their way
_TIMEOUT_S = 2.0
_NOT_FOUND, _NO_ROOM, _INVALID = -704, -200, -600
_LEASED = -706
_OTHER_WRITER, _UNFINISHED = -601, -703  # another client writes the value at this moment
_NOT_KEPT = (_NO_ROOM, _INVALID, _LEASED, _OTHER_WRITER, _NOT_FOUND)  # evicted while it is written
_DEFAULTS = {"metadata": "P2PHANDSHAKE", "protocol": "tcp", "device": "", "host": ""}


class MooncakeDriver:
    """A `RemoteDriver` for mooncake://HOST:PORT, the address of the master, with the options
    `protocol` (tcp or rdma), `device`, `metadata` (P2PHANDSHAKE or an address), and `host`, this
    machine's name for others. Joins once, for which it holds Python's lock."""

    max_bytes = _BUFFER_BYTES // 2

    def __init__(self, address: str) -> None:
        os.environ.setdefault("GLOG_minloglevel", "2")  # its library writes to stderr
        store = import_extra("mooncake.store", extra="mooncake")
        host, port, options = _parts(address)
        own = options["host"] or _own_address(host, port)
        self._store: Any = store.MooncakeDistributedStore()
        status = self._store.setup(
            f"{own}:{_free_port()}",
            options["metadata"],
            0,
            _BUFFER_BYTES,
            options["protocol"],
            options["device"],
            f"{host}:{port}",
        )
        if status != 0:
            raise StoreUnavailableError(f"Mooncake's master refused the client ({status})")

    def has(self, name: str) -> bool:
        found = int(self._store.is_exist(name))
        if found < 0 and found != _NOT_FOUND:
            raise StoreUnavailableError(f"Mooncake: error {found}")
        return found == 1

    def get(self, name: str, *, max_bytes: int) -> bytearray | None:
        for _ in range(2):  # a value that another client replaces at this moment cannot be read
            size = int(self._store.get_size(name))
            if size in (_NOT_FOUND, _UNFINISHED) or size > min(max_bytes, self.max_bytes):
                return None
            buffer = self._store.get_buffer(name) if size > 0 else None  # the client's own memory
            if buffer is not None and (value := bytearray(memoryview(buffer))):
                return value
        raise StoreUnavailableError(f"Mooncake: error {size}, or a pool that does not answer")

    def put(self, name: str, value: bytes) -> bool:
        status = int(self._store.upsert(name, value))
        if status != 0 and status not in _NOT_KEPT:
            raise StoreUnavailableError(f"Mooncake: error {status}")
        return status == 0

    def remove(self, name: str) -> None:
        status = int(self._store.remove(name))
        if status == _LEASED:
            status = int(self._store.remove(name, True))
        if status not in (0, _NOT_FOUND, _LEASED):
            raise StoreUnavailableError(f"Mooncake: error {status}")

    def close(self) -> None:
        self._store.close()


def _parts(address: str) -> tuple[str, int, dict[str, str]]:
    try:
        url = urlsplit(address)
        host, port = url.hostname, url.port
        given = dict(parse_qsl(url.query, keep_blank_values=True))
    except ValueError:
        host = port = None
        given = {}
    if not host or not port or url.path.strip("/") or set(given) - set(_DEFAULTS):
        raise ConfigError(
            "a remote store in Mooncake is mooncake://HOST:PORT of its master, with the options "
            f"{', '.join(_DEFAULTS)}"
        )
    return host, port, {**_DEFAULTS, **given}


def _own_address(host: str, port: int) -> str:
    try:
        with socket.create_connection((host, port), timeout=_TIMEOUT_S) as connection:
            own: str = connection.getsockname()[0]
    except OSError as error:
        raise StoreUnavailableError(f"Mooncake's master at {host}:{port}: {error}") from error
    return own


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        port: int = probe.getsockname()[1]
    return port
