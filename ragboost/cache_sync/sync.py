"""Follow every backend's prefix cache: find its streams, listen, take reports, say how it goes.

Joins backends, streams and followers. Does not know requests or what an event means.
"""

import asyncio
import logging
import time
from collections.abc import Coroutine, Iterator, Sequence
from typing import Any, NamedTuple

from ragboost.cache_sync.discovery import configured, discover
from ragboost.cache_sync.fidelity import FidelityTracker
from ragboost.cache_sync.follower import CacheFollower
from ragboost.cache_sync.prefix_mirror import Changes
from ragboost.cache_sync.sources import EventSource
from ragboost.cache_sync.stream import EventStream, StreamState
from ragboost.cache_sync.subscriber import Subscriber
from ragboost.cache_sync.tokenize import BackendTokenizer
from ragboost.config import Settings
from ragboost.engine_hooks.reports import ReportReceiver
from ragboost.errors import ConfigError, RequestError
from ragboost.proxy.upstream.backends import Backend, Backends
from ragboost.rewriting.tenants import Tenants

logger = logging.getLogger(__name__)

_RETRY_S = 2.0  # while a backend is down, or its streams are
_RECHECK_S = 30.0
_EXPIRE_S = 5.0


class StreamView(NamedTuple):
    """A stream with the name of its backend."""

    backend: str
    stream: EventStream


class CacheSync:
    """The followers of all backends, and what feeds them.

    Attributes:
        followers: by name of the backend.
        tenants: whose indexes follow.
        fidelity: predicted against reported cached tokens, over all backends.
    """

    def __init__(self, settings: Settings, *, backends: Backends, tenants: Tenants) -> None:
        self._settings = settings.engine_hooks
        # In shadow mode the indexes hold what would have been sent: events say nothing of it.
        self._is_listening = not settings.proxy.shadow
        self._backends: Sequence[Backend] = backends.all
        if self._settings.endpoint is not None and len(self._backends) > 1:
            raise ConfigError(
                "engine_hooks.endpoint names the stream of a single backend, and there are "
                f"{len(self._backends)}; leave it out: each is asked where it publishes"
            )
        self.followers = {each.name: CacheFollower(each.name, tenants) for each in backends.all}
        self.fidelity = FidelityTracker()
        self.tenants = tenants
        self._is_tokenizing = settings.tokens.ask_backend and settings.tokens.tokenizer is None
        self._subscribers: dict[str, Subscriber] = {}
        self._sources: dict[str, tuple[EventSource, ...]] = {}
        self._receiver = ReportReceiver(on_change=self._on_report, check=self._follower_of)
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self) -> None:
        """Begin to follow; nothing waits for a backend.

        Raises:
            ConfigError: a configured address that ZeroMQ cannot use.
        """
        for backend in self._backends:
            source = configured(self._settings, backend)
            if source is not None:
                await self._listen(backend, (source,))
            run = self.followers[backend.name].run()
            self._tasks.append(_start(run, name=f"following {backend.name}"))
            if self._settings.discover:
                watch = self._watch(backend)
                self._tasks.append(_start(watch, name=f"watching {backend.name}"))
        self._tasks.append(_start(self._expire(), name="expiring reports"))
        if self._is_tokenizing:
            asking = BackendTokenizer(
                self._backends, followers=self.followers, tenants=self.tenants
            )
            self._tasks.append(_start(asking.run(), name="asking for tokens"))

    async def close(self) -> None:
        """Stop listening."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for subscriber in self._subscribers.values():
            await asyncio.to_thread(subscriber.stop)

    async def report(self, body: bytes) -> bytes:
        """Take in a report of the in-engine hook; returns the body of the answer.

        Raises:
            RequestError: no report, or its stream belongs to no backend.
        """
        answer = await asyncio.to_thread(self._receiver.receive, body, now=time.monotonic())
        for name, stream in list(self._receiver.streams.items()):
            if stream.is_connected:
                self._follower_of(name).streams[name] = stream
        return answer

    @property
    def streams(self) -> Iterator[StreamView]:
        """Every stream that is followed."""
        for name, follower in self.followers.items():
            for stream in list(follower.streams.values()):
                yield StreamView(name, stream)

    def _follower_of(self, stream: str) -> CacheFollower:
        """The follower of a report's stream: the backend's of that name, or the only one.

        Raises:
            RequestError: no backend has this name.
        """
        if len(self.followers) == 1:
            return next(iter(self.followers.values()))
        name = stream.rpartition("/")[0]
        if name not in self.followers:
            raise RequestError(
                f"no backend is called {name!r}: set RAGBOOST_ENGINE_HOOKS__REPORT_STREAM in the "
                f"engine to one of {', '.join(self.followers)}",
                param="stream",
            )
        return self.followers[name]

    def _on_report(self, stream: str, changes: Changes) -> None:
        self._follower_of(stream).on_change(stream, changes)

    async def _watch(self, backend: Backend) -> None:
        """Look for the streams of a backend until it has them, and again when they are lost."""
        follower = self.followers[backend.name]
        is_configured = self._settings.endpoint is not None
        was_up = True
        while True:
            found = await discover(backend)
            if found.is_up != was_up:
                _tell(backend, is_up=found.is_up)
                was_up = found.is_up
            follower.capacity_tokens = found.capacity_tokens or follower.capacity_tokens
            if found.sources and not is_configured:
                await self._listen(backend, found.sources)
            is_lost = follower.state is StreamState.FALLBACK
            await asyncio.sleep(_RETRY_S if is_lost or not found.is_up else _RECHECK_S)

    async def _listen(self, backend: Backend, sources: tuple[EventSource, ...]) -> None:
        """Subscribe to these sources in place of those before."""
        if not self._is_listening or self._sources.get(backend.name) == sources:
            return
        follower = self.followers[backend.name]
        old = self._subscribers.pop(backend.name, None)
        if old is not None:
            await asyncio.to_thread(old.stop)
            for name in old.streams:
                follower.streams.pop(name, None)
        subscriber = Subscriber(sources, on_change=follower.on_change)
        follower.streams.update(subscriber.streams)
        subscriber.start()
        self._sources[backend.name] = sources
        self._subscribers[backend.name] = subscriber
        where = ", ".join(source.endpoint for source in sources)
        logger.info("backend %s: following its KV events at %s", backend.name, where)

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(_EXPIRE_S)
            self._receiver.expire(now=time.monotonic())
            for name, stream in list(self._receiver.streams.items()):
                if not stream.is_connected:  # reports will bring it back
                    self._follower_of(name).streams.pop(name, None)


def _tell(backend: Backend, *, is_up: bool) -> None:
    if is_up:
        logger.info("backend %s: answers now", backend.name)
    else:
        logger.warning(
            "backend %s: no answer from %s yet; `ragboost doctor` says more",
            backend.name,
            backend.url,
        )


def _start(work: Coroutine[Any, Any, None], *, name: str) -> "asyncio.Task[None]":
    """Run work until it is cancelled; that it fails is a bug, and is not passed over in silence."""
    task = asyncio.create_task(work, name=name)
    task.add_done_callback(_log_failure)
    return task


def _log_failure(task: "asyncio.Task[None]") -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("%s failed", task.get_name(), exc_info=error)
