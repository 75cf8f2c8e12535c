"""The upstream servers and their health.

Knows which there are. Does not know how a request is sent, or what it means.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ragboost.config import BackendSettings, ReplicaSettings, Settings
from ragboost.errors import (
    BackendError,
    BackendRefusedError,
    BackendTimeoutError,
    ConfigError,
)
from ragboost.proxy.upstream.backend import Backend
from ragboost.proxy.watched_file import Refreshable, WatchedFile

logger = logging.getLogger(__name__)


@dataclass
class Backends:
    """The upstream servers and their health.

    Each is checked at intervals. One that refuses a connection or fails `max_failures` times in a
    row is unhealthy until a check succeeds. It gets no requests unless all are unhealthy.
    """

    all: Sequence[Backend]  # the backends, healthy or not
    health_interval_s: float = 2.0  # time between two checks
    max_failures: int = 3  # consecutive failures that make a backend unhealthy
    # Called with each backend that becomes unhealthy; its prefix cache counts as lost.
    on_down: list[Callable[[Backend], None]] = field(default_factory=list)
    on_up: list[Callable[[], None]] = field(default_factory=list)  # one is healthy again
    sources: list[Refreshable] = field(default_factory=list)  # of their list and of their key

    def __post_init__(self) -> None:
        for number, backend in enumerate(self.all):
            backend.number = number

    @classmethod
    def of(cls, settings: Settings) -> "Backends":
        """Make the backends that the settings name.

        Raises:
            ConfigError: two have the same name, or a file of the settings cannot be used.
        """
        replicas: Sequence[ReplicaSettings | None] = settings.backends or (None,)
        backends = [
            Backend(settings.backend, replica, rank=rank)
            for replica in replicas
            for rank in _ranks(settings.backend, replica)
        ]
        names = [backend.name for backend in backends]
        if repeated := sorted({name for name in names if names.count(name) > 1}):
            raise ConfigError(
                f"backends: two have the name {repeated[0]!r}; set `name` of one of them"
            )
        router = settings.router
        made = cls(backends, router.health_interval_s, router.max_failures)
        for backend in backends:
            backend.hides_client_keys = settings.proxy.has_keys
        if (path := settings.backend.api_key_file) is not None:
            if settings.backend.api_key is not None:
                raise ConfigError("set either backend.api_key or backend.api_key_file")
            setting = "backend.api_key_file"
            made.sources.append(WatchedFile(path, setting=setting, apply=made._set_key))
        return made

    def _set_key(self, contents: bytes) -> None:
        key = contents.decode("latin-1").strip()
        if not (key.isascii() and key.isprintable()):
            raise ConfigError("is not one line of ASCII")
        for backend in self.all:
            if not backend.has_own_key:
                backend.api_key = key

    def open(self) -> None:
        self._checks = [asyncio.create_task(self._check(backend)) for backend in self.all]

    async def close(self) -> None:
        for check in self._checks:
            check.cancel()
        await asyncio.gather(*self._checks, return_exceptions=True)
        for backend in self.all:
            backend.close()

    def candidates(self, exclude: Sequence[Backend] = ()) -> Sequence[Backend]:
        """Return the healthy backends, or all if none is healthy, without the excluded ones."""
        candidates = [backend for backend in self.all if backend not in exclude]
        return [backend for backend in candidates if backend.is_healthy] or candidates

    def note_failure(self, backend: Backend, error: BackendError) -> None:
        """Record that a request failed before its response began."""
        if isinstance(error, BackendTimeoutError):
            return  # a slow backend is not unhealthy
        backend.num_failures += 1
        if isinstance(error, BackendRefusedError) or backend.num_failures >= self.max_failures:
            self._set_problem(backend, str(error))

    async def find_problems(self) -> dict[str, str]:
        """Return what is wrong with backends by their names; not ready if that is all of them.

        The unhealthy ones are not asked again, unless all are.
        """

        async def find(backend: Backend) -> str | None:
            return await backend.find_problem() or await backend.find_refusal()

        asked = self.candidates()
        found = dict(zip(asked, await asyncio.gather(*map(find, asked)), strict=True))
        problems = {backend.name: found.get(backend, backend.problem) for backend in self.all}
        return {name: problem for name, problem in problems.items() if problem is not None}

    async def _check(self, backend: Backend) -> None:
        while True:
            await asyncio.sleep(self.health_interval_s)
            num_failures = backend.num_failures
            problem = await backend.find_problem()
            if problem is None and backend.num_failures > num_failures:
                continue  # a request failed while the check succeeded
            backend.num_failures = 0 if problem is None else backend.num_failures + 1
            if problem is None or backend.num_failures >= self.max_failures:
                self._set_problem(backend, problem)

    def _set_problem(self, backend: Backend, problem: str | None) -> None:
        was_healthy, backend.problem = backend.is_healthy, problem
        if was_healthy == backend.is_healthy:
            return
        if backend.is_healthy:
            logger.info("backend %s is healthy again", backend.name)
            for notify in self.on_up:
                notify()
            return
        logger.warning("backend %s is unhealthy until a check succeeds: %s", backend.name, problem)
        for call in self.on_down:
            call(backend)


def _ranks(settings: BackendSettings, replica: ReplicaSettings | None) -> Sequence[int | None]:
    size = (replica and replica.data_parallel_size) or settings.data_parallel_size
    return range(size) if size > 1 else (None,)
