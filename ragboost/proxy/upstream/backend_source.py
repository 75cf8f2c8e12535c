"""Find the URLs of backends that come and go, in DNS or in a file; never none."""

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from pydantic import TypeAdapter, ValidationError

from ragboost.config import Settings
from ragboost.config.proxy import BaseUrl
from ragboost.errors import ConfigError
from ragboost.proxy.watched_file import Refreshable, WatchedFile

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
        self._follow = follow
        self._problem: str | None = None
        self._lookup: asyncio.Task[list[Any]] | None = None  # that has not been read

    async def refresh(self) -> None:
        host, port = self._parts.hostname, self._parts.port or 80
        if self._lookup is None:  # one that hangs keeps its thread: there is never a second
            loop = asyncio.get_running_loop()
            answer = loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            self._lookup = asyncio.ensure_future(answer)
        try:
            await asyncio.wait([self._lookup], timeout=_TIMEOUT_S)
            if not self._lookup.done():
                raise TimeoutError
            lookup, self._lookup = self._lookup, None
            found = lookup.result()
        except (OSError, UnicodeError) as error:  # TimeoutError is one
            problem = str(error) or "no answer"
            if problem != self._problem:
                logger.warning("backend.dns: %s; the last addresses still count", problem)
            self._problem = problem
            return
        self._problem = None
        family = found[0][0]
        addresses = sorted({str(each[4][0]) for each in found if each[0] == family})
        self._follow([self._url(address, port) for address in addresses])

    def _url(self, address: str, port: int) -> str:
        login, at, _ = self._parts.netloc.rpartition("@")
        host = f"[{address}]" if ":" in address else address
        return urlunsplit(("http", f"{login}{at}{host}:{port}", self._parts.path, "", ""))


def _read_urls(contents: bytes) -> list[str]:
    try:
        urls = _URLS.validate_json(contents, strict=True)
    except ValidationError:  # quotes URLs, which may hold passwords
        urls = []
    if not 0 < len(urls) <= _MAX_URLS:
        raise ConfigError('must be a JSON list of 1 to 4096 URLs such as ["http://10.0.0.1:8000"]')
    return urls
