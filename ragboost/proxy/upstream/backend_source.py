"""Find the URLs of backends that come and go, in DNS or in a file; never none."""

import logging
import socket
from collections.abc import Callable, Sequence
from urllib.parse import urlsplit, urlunsplit

from pydantic import TypeAdapter, ValidationError

from ragboost.config import Settings
from ragboost.config.proxy import BaseUrl
from ragboost.errors import ConfigError
from ragboost.proxy.watched_file import HangingCall, Refreshable, WatchedFile

logger = logging.getLogger(__name__)

Follow = Callable[[Sequence[str]], None]
_TIMEOUT_S = 10.0
_MAX_URLS = 4096  # taking over so many takes 50 ms
_URLS = TypeAdapter(list[BaseUrl])


def backend_source(settings: Settings, follow: Follow) -> Refreshable:
    """Return the source that the settings name, which calls `follow` with every list."""
    backend = settings.backend
    if backend.file is None:
        return _Addresses(backend.url, follow)
    return WatchedFile(
        backend.file, setting="backend.file", apply=lambda contents: follow(_read_urls(contents))
    )


class _Addresses:
    """All addresses of a host, in one family: two of one server would be two backends."""

    def __init__(self, url: str, follow: Follow) -> None:
        self._parts = urlsplit(url)
        if self._parts.scheme != "http":
            raise ConfigError("backend.dns needs a backend.url with http")
        self._port = self._parts.port or 80
        self._follow = follow
        self._problem: str | None = None
        self._lookup = HangingCall(self._look_up)

    async def refresh(self) -> None:
        try:
            addresses = await self._lookup.result(timeout_s=_TIMEOUT_S)
        except (OSError, UnicodeError) as error:  # TimeoutError is one
            problem = str(error) or "no answer"
            if problem != self._problem:
                logger.warning("backend.dns: %s; the last addresses still count", problem)
            self._problem = problem
            return
        self._problem = None
        self._follow([self._url(address) for address in addresses])

    def _look_up(self) -> list[str]:
        found = socket.getaddrinfo(self._parts.hostname, self._port, type=socket.SOCK_STREAM)
        return sorted({str(each[4][0]) for each in found if each[0] == found[0][0]})

    def _url(self, address: str) -> str:
        login, at, _ = self._parts.netloc.rpartition("@")
        host = f"[{address}]" if ":" in address else address
        return urlunsplit(("http", f"{login}{at}{host}:{self._port}", self._parts.path, "", ""))


def _read_urls(contents: bytes) -> list[str]:
    try:
        urls = _URLS.validate_json(contents, strict=True)
    except ValidationError:  # quotes URLs, which may hold passwords
        urls = []
    if not 0 < len(urls) <= _MAX_URLS:
        raise ConfigError('must be a JSON list of 1 to 4096 URLs such as ["http://10.0.0.1:8000"]')
    return urls
