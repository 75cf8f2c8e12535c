"""The upstream servers, in settings, in DNS or in a file that changes, and their health."""

import asyncio
import logging
import socket
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol
from urllib.parse import urlsplit, urlunsplit

from pydantic import TypeAdapter, ValidationError

from ragboost.config import BackendSettings, ReplicaSettings, Settings
from ragboost.config.proxy import BaseUrl, public_url
from ragboost.errors import (
    BackendError,
    BackendRefusedError,
    BackendTimeoutError,
    ConfigError,
    RequestError,
)
from ragboost.proxy.upstream.backend import Backend, Problem
from ragboost.proxy.watched_file import HangingCall, Refreshable, WatchedFile

logger = logging.getLogger(__name__)

_MAX_FAILURES = 3  # in a row, that make a backend unhealthy


class NoBackendError(RequestError):
    """The list of backends has not been found yet."""

    status = 503
    retry_after_s = 1

    def __init__(self) -> None:
        super().__init__("no backend is known yet")


class _BackendUser(Protocol):
    def add(self, backend: Backend, /) -> None: ...

    def remove(self, backend: Backend, /) -> None: ...


@dataclass
class Backends:
    """The upstream servers and their health.

    Each is checked at once, then at intervals. One that refuses connections or the proxy's
    credentials, or fails three times in a row, is unhealthy until a check succeeds. It
    gets no requests unless all are unhealthy.

    Where their list changes, one that is removed gets no further requests, and is forgotten when
    those that it has have ended. Its number is then another one's.
    """

    all: Sequence[Backend]  # the backends, healthy or not; replaced when the list changes
    health_interval_s: float = 2.0  # time between two checks
    # Called with each backend that becomes unhealthy or is removed; its prefix cache is lost.
    on_down: list[Callable[[Backend], None]] = field(default_factory=list)
    on_up: list[Callable[[], None]] = field(default_factory=list)  # one is healthy again
    on_added: list[Callable[[Backend], None]] = field(default_factory=list)
    on_removed: list[Callable[[Backend], None]] = field(default_factory=list)  # and has no requests
    on_change: list[Callable[[], None]] = field(default_factory=list)  # of `all` or `draining`
    sources: list[Refreshable] = field(default_factory=list)  # of their list and of keys
    width: int = 0  # their numbers are below it

    def __post_init__(self) -> None:
        self.draining: list[Backend] = []  # removed, with running requests
        self._checks: dict[Backend, asyncio.Task[None]] = {}
        self._running_checks: dict[Backend, asyncio.Task[None]] = {}
        self._is_open = self._is_full = False
        self._follow_again: Callable[[], None] = lambda: None  # with the last list
        self._key: str | None = None  # of the file
        self.width = self.width or len(self.all)
        for number, backend in enumerate(self.all):
            backend.number = number

    @classmethod
    def of(cls, settings: Settings) -> "Backends":
        """Make the backends that the settings name."""
        router, backend, own = settings.router, settings.backend, settings.backends
        made = cls(
            [] if backend.is_dynamic else _make(settings, own or (None,)),
            router.health_interval_s,
            width=settings.num_backends,
        )
        names = [each.name for each in made.all]
        if repeated := sorted({name for name in names if names.count(name) > 1}):
            raise ConfigError(
                f"backends: two have the name {repeated[0]!r}; set `name` of one of them"
            )
        if backend.is_dynamic:
            if own or (backend.dns and backend.file):
                raise ConfigError("set one of backends, backend.dns and backend.file")
            if backend.file and "url" in backend.model_fields_set:
                raise ConfigError("set either backend.url (--backend) or backend.file")
            made.sources += [backend_source(settings, partial(made.follow, settings)), made]
        if (path := backend.api_key_file) is not None:
            if backend.api_key is not None:
                raise ConfigError("set either backend.api_key or backend.api_key_file")
            setting = "backend.api_key_file"
            made.sources.append(WatchedFile(path, setting=setting, apply=made._set_key))
        return made

    def inform(self, *parts: _BackendUser) -> None:
        self.on_added += [part.add for part in parts]
        self.on_removed += [part.remove for part in parts]

    def follow(self, settings: Settings, urls: Sequence[str]) -> None:
        """Add the backends of new URLs, and remove those whose URL is not among these."""
        replicas = {each.name: each for each in map(_replica, urls)}
        self._follow_again = partial(self.follow, settings, list(urls))
        kept = [backend for backend in self.all if backend.server in replicas]
        removed = [backend for backend in self.all if backend.server not in replicas]
        returned = [backend for backend in self.draining if backend.server in replicas]
        for backend in (*kept, *returned):
            backend.use_login(replicas[backend.server].url)
        present = {backend.server for backend in (*kept, *returned)}
        self.draining = [each for each in self.draining if each not in returned] + removed
        free = sorted(
            set(range(self.width)) - {each.number for each in (*kept, *returned, *self.draining)}
        )
        added: list[Backend] = []
        was_full, self._is_full = self._is_full, False
        for name, replica in replicas.items():
            if name in present:
                continue
            ranks = _make(settings, [replica])
            if len(ranks) > len(free):
                self._is_full = True
                break
            for backend in ranks:
                backend.number, backend.api_key = free.pop(0), self._key or backend.api_key
            added += ranks
        if self._is_full and not was_full:
            logger.warning("there are more than %d backends: the others are ignored", self.width)
        if added or removed or returned:
            self._replace([*kept, *returned, *added], added, returned, removed)

    def _replace(
        self,
        backends: Sequence[Backend],
        added: Sequence[Backend],
        returned: Sequence[Backend],
        removed: Sequence[Backend],
    ) -> None:
        self.all = backends
        for backend in (*added, *returned):
            logger.info("backend %s is added", backend.name)
            backend.problem = None
            for add in self.on_added if backend in added else ():
                add(backend)
        for notify in self.on_change:
            notify()
        if self._is_open:
            self._start_checks()
        for backend in removed:
            logger.info("backend %s is removed; its requests may end", backend.name)
            if (check := self._checks.pop(backend, None)) is not None:
                check.cancel()
            backend.problem = "it is removed"
            for call in self.on_down:
                call(backend)
        for update in self.on_up:
            update()

    async def refresh(self) -> None:
        """Forget the removed backends whose requests have ended, and add what had no place."""
        ended = [backend for backend in self.draining if not backend.load.assigned]
        for backend in ended:
            self.draining.remove(backend)
            await backend.aclose()
            for call in self.on_removed:
                call(backend)
        if not ended:
            return
        for notify in self.on_change:
            notify()
        if self._is_full:
            self._follow_again()

    def _set_key(self, contents: bytes) -> None:
        key = contents.decode("latin-1").strip()
        if not (key.isascii() and key.isprintable()):
            raise ConfigError("is not one line of ASCII")
        self._key = key
        for backend in (*self.all, *self.draining):
            if not backend.has_own_key:
                backend.api_key = key

    async def open(self) -> None:
        """Begin to check them, after those of a list have been looked up for the first time."""
        if not self.all:
            await self.sources[0].refresh()
        self._is_open = True
        self._start_checks()

    async def close(self) -> None:
        checks = [*self._checks.values(), *self._running_checks.values()]
        for check in checks:
            check.cancel()
        await asyncio.gather(*checks, return_exceptions=True)
        for backend in (*self.all, *self.draining):
            await backend.aclose()

    def _start_checks(self) -> None:
        for backend in self.all:
            if backend not in self._checks:
                # Nothing speaks for it yet: one failure is enough.
                backend.num_failures = _MAX_FAILURES - 1
                self._checks[backend] = asyncio.create_task(self._check_always(backend))

    def candidates(self, exclude: Sequence[Backend] = ()) -> Sequence[Backend]:
        """Return the healthy backends, or all if none is healthy, without the excluded ones."""
        candidates = [backend for backend in self.all if backend not in exclude]
        return [backend for backend in candidates if backend.is_healthy] or candidates

    def note_failure(self, backend: Backend, error: BackendError) -> None:
        if isinstance(error, BackendTimeoutError):
            return  # a slow backend is not unhealthy
        is_refused = isinstance(error, BackendRefusedError)
        self._note_problem(backend, Problem(str(error), is_certain=is_refused))

    async def find_problems(self) -> dict[str, str]:
        """Return why backends are unhealthy, by name, after a check of those that may get requests.

        It counts as any other: there is one judgement for routing, metrics, pages and `/ready`.
        """
        await asyncio.gather(*map(self._check, self.candidates()))
        return {each.name: each.problem for each in self.all if each.problem is not None}

    async def _check_always(self, backend: Backend) -> None:
        while True:
            await self._check(backend)
            await asyncio.sleep(self.health_interval_s)

    async def _check(self, backend: Backend) -> None:
        """Check a backend, or wait for the check that is running: one at a time, however many ask.

        Else a flood of `/ready` would flood the backends, and be many failures at once.
        """
        running = self._running_checks.get(backend)
        if running is None:
            running = asyncio.create_task(self._ask(backend))
            self._running_checks[backend] = running
            running.add_done_callback(lambda _: self._running_checks.pop(backend, None))
        await asyncio.shield(running)

    async def _ask(self, backend: Backend) -> None:
        num_failures = backend.num_failures
        problem = await backend.find_problem()
        if backend not in self.all:
            return  # it was removed meanwhile
        if problem is not None:
            self._note_problem(backend, problem)
        elif backend.num_failures <= num_failures:  # else a request failed meanwhile
            backend.num_failures = 0
            self._set_problem(backend, None)

    def _note_problem(self, backend: Backend, problem: Problem) -> None:
        backend.num_failures += 1
        if problem.is_certain or backend.num_failures >= _MAX_FAILURES:
            self._set_problem(backend, problem.reason)

    def _set_problem(self, backend: Backend, problem: str | None) -> None:
        was_healthy, backend.problem = backend.is_healthy, problem
        if was_healthy == backend.is_healthy:
            return
        if backend.is_healthy:
            logger.info("backend %s is healthy again", backend.name)
            for notify in self.on_up:
                notify()
            return
        logger.warning(
            "backend %s at %s is unhealthy until a check succeeds: %s; see `ragboost doctor`",
            backend.name,
            backend.url,
            problem,
        )
        for call in self.on_down:
            call(backend)


def _make(settings: Settings, replicas: Iterable[ReplicaSettings | None]) -> list[Backend]:
    backends = [
        Backend(settings.backend, replica, rank=rank)
        for replica in replicas
        for rank in _ranks(settings.backend, replica)
    ]
    for backend in backends:
        backend.hides_client_keys = settings.proxy.has_keys
    return backends


def _replica(url: str) -> ReplicaSettings:
    return ReplicaSettings(url=url, name=public_url(url).partition("://")[2])


def _ranks(settings: BackendSettings, replica: ReplicaSettings | None) -> Sequence[int | None]:
    size = settings.data_parallel_size
    return range(size) if size > 1 else (None,)


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
