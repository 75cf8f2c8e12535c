"""Follow the prefix cache of every backend: discover its event streams, subscribe, take reports;
compare predicted with reported cached tokens."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Coroutine, Iterator, Sequence
from typing import Any, NamedTuple

from ragboost.booster.tenants import Tenants
from ragboost.cache_sync.discovery import EngineClient, EventSource, configured_source, discover
from ragboost.cache_sync.event_stream import EventStream, StreamState
from ragboost.cache_sync.follower import CacheFollower
from ragboost.cache_sync.prefix_mirror import Changes
from ragboost.cache_sync.report_receiver import ReportReceiver
from ragboost.cache_sync.subscriber import Subscriber
from ragboost.cache_sync.tokenizer import BackendTokenizer
from ragboost.config import Settings
from ragboost.errors import ConfigError, RequestError

logger = logging.getLogger(__name__)

_RETRY_S = 2.0  # while a backend or its streams are down
_RECHECK_S = 30.0
_INSPECT_S = 5.0
_MAX_RANKS = 256  # of one backend's data-parallel ranks
_WARN_BELOW = 0.9
_RECOVERED = 0.92  # higher, so that figures about the limit are not warned of again and again


class Fidelity(NamedTuple):
    """Predicted against reported cached tokens over the last requests; 1.0 is perfect."""

    num_requests: int  # requests in the window
    precision: float  # share of the tokens predicted as cached that were cached
    recall: float  # share of the cached tokens that were predicted


class FidelityTracker:
    """Precision and recall over a window, with a warning, once until they recover."""

    def __init__(self, *, window: int = 512, min_requests: int = 50) -> None:
        self.min_requests = min_requests
        self.is_low = False  # precision or recall fell below `_WARN_BELOW`
        self._window: deque[tuple[int, int]] = deque(maxlen=window)
        self._predicted = self._reported = self._both = 0

    def record(self, *, predicted: int, reported: int, prompt_tokens: int) -> float:
        """Add one request and return its error, (predicted - reported) / prompt tokens."""
        predicted = min(predicted, prompt_tokens)
        if len(self._window) == self._window.maxlen:
            self._add(*self._window[0], sign=-1)
        self._window.append((predicted, reported))
        self._add(predicted, reported, sign=1)
        self._warn()
        return (predicted - reported) / max(prompt_tokens, 1)

    def read(self) -> Fidelity:
        return Fidelity(
            num_requests=len(self._window),
            precision=self._both / self._predicted if self._predicted else 1.0,
            recall=self._both / self._reported if self._reported else 1.0,
        )

    def _add(self, predicted: int, reported: int, *, sign: int) -> None:
        self._predicted += sign * predicted
        self._reported += sign * reported
        self._both += sign * min(predicted, reported)

    def _warn(self) -> None:
        if len(self._window) < self.min_requests:
            return
        figures = self.read()
        limit = _RECOVERED if self.is_low else _WARN_BELOW
        is_low = min(figures.precision, figures.recall) < limit
        if is_low and not self.is_low:
            logger.warning(
                "predicted cached tokens no longer match what the backend reports: precision %.3f, "
                "recall %.3f over %d requests; see /ready for the state of the KV event streams, "
                "and run `ragboost doctor`",
                figures.precision,
                figures.recall,
                figures.num_requests,
            )
        elif self.is_low and not is_low:
            logger.info("predicted cached tokens match the backend's reports again")
        self.is_low = is_low


class StreamView(NamedTuple):
    """A stream, the name of its backend, and why nothing arrives on it, if so."""

    backend: str
    stream: EventStream
    silence: str | None = None


class CacheSync:
    """The followers of all backends, and the streams and reports that feed them."""

    def __init__(
        self, settings: Settings, *, engines: Sequence[EngineClient], tenants: Tenants
    ) -> None:
        self._settings = settings.engine_hooks
        # In shadow mode the indexes hold what would have been sent, which events do not report.
        self._is_subscribing = not settings.proxy.shadow
        self._engines: list[EngineClient] = []
        if self._settings.endpoint is not None and settings.num_backends > 1:
            raise ConfigError(
                "engine_hooks.endpoint is the stream of a single backend, and there are several; "
                "remove it: each backend is asked for its own"
            )
        self.followers: dict[str, CacheFollower] = {}  # by name of the backend
        # Predicted against reported cached tokens, over all backends.
        self.fidelity = FidelityTracker()
        self.tenants = tenants
        self._is_tokenizing = settings.tokens.ask_backend and settings.tokens.tokenizer is None
        self._subscribers: dict[str, Subscriber] = {}
        self._sources: dict[str, tuple[EventSource, ...]] = {}
        self._receiver = ReportReceiver(on_change=self._on_report, name=self._stream_name)
        self._silent: dict[str, str | None] = {}  # by stream, at the last inspection
        self._is_down: dict[str, bool] = {}  # by backend, where it is known
        self._tasks: list[asyncio.Task[None]] = []
        self._tasks_of: dict[str, list[asyncio.Task[None]]] = {}  # by backend
        self._is_open = False
        for engine in engines:
            self.add(engine)

    def add(self, engine: EngineClient) -> None:
        self._engines.append(engine)
        self.followers[engine.name] = CacheFollower(engine.name, self.tenants)
        if self._is_open:
            self._start_following(engine)

    def remove(self, engine: EngineClient) -> None:
        """Forget a backend that has no requests."""
        name = engine.name
        self._engines.remove(engine)
        for task in self._tasks_of.pop(name, ()):
            task.cancel()
        self._sources.pop(name, None)
        self._is_down.pop(name, None)
        for stream in self.followers.pop(name).streams:
            self._silent.pop(stream, None)
        if (subscriber := self._subscribers.pop(name, None)) is not None:
            self._tasks = [task for task in self._tasks if not task.done()]
            stop = asyncio.to_thread(subscriber.stop)
            self._tasks.append(_start(stop, name=f"leaving {name}"))

    async def open(self) -> None:
        """Start following, without waiting for any backend."""
        for engine in self._engines:
            source = configured_source(self._settings, name=f"{engine.name}/0")
            if source is not None:
                await self._subscribe(engine, (source,))
            self._start_following(engine)
        self._is_open = True
        self._tasks.append(_start(self._inspect(), name="inspecting streams"))
        if self._is_tokenizing:
            tokenizer = BackendTokenizer(
                self._engines, followers=self.followers, tenants=self.tenants
            )
            self._tasks.append(_start(tokenizer.run(), name="counting tokens"))

    def _start_following(self, engine: EngineClient) -> None:
        name = engine.name
        self._tasks_of[name] = [_start(self.followers[name].run(), name=f"following {name}")]
        watch = self._watch(engine)
        self._tasks_of[name].append(_start(watch, name=f"watching {name}"))

    async def close(self) -> None:
        tasks = [*self._tasks, *(task for tasks in self._tasks_of.values() for task in tasks)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for subscriber in self._subscribers.values():
            await asyncio.to_thread(subscriber.stop)

    async def report(self, body: bytes) -> bytes:
        """Apply a report of the plug-in inside an engine; return the body of the response."""
        answer = await asyncio.to_thread(self._receiver.receive, body, now=time.monotonic())
        self._select_streams()
        return answer

    @property
    def streams(self) -> Iterator[StreamView]:
        for backend, follower in self.followers.items():
            subscriber = self._subscribers.get(backend)
            is_up = self._is_up(backend)
            for name, stream in follower.streams.items():
                is_own = subscriber is not None and subscriber.streams.get(name) is stream
                silence = subscriber.silence(name) if subscriber is not None and is_own else None
                if silence is not None and not is_up:
                    silence = "the backend is down"
                yield StreamView(backend, stream, silence)

    def _is_up(self, backend: str) -> bool:
        is_healthy = all(engine.is_healthy for engine in self._engines if engine.name == backend)
        return is_healthy and not self._is_down.get(backend)

    def _stream_name(self, reported: str) -> str:
        """Return `BACKEND/RANK` for a report's stream; a single backend's may have any name."""
        name, _, rank = reported.rpartition("/")
        if not (rank.isascii() and rank.isdecimal()) or int(rank) >= _MAX_RANKS:
            raise RequestError(
                f"stream must be NAME/RANK with a rank below {_MAX_RANKS}, got {reported!r}",
                param="stream",
            )
        name = self._follower_name(name, int(rank))
        if name not in self.followers:
            raise RequestError(
                f"no backend is named {name!r}: set RAGBOOST_ENGINE_HOOKS__REPORT_STREAM in the "
                f"engine to one of {', '.join(self.followers)}",
                param="stream",
            )
        return f"{name}/{int(rank)}"

    def _follower_name(self, reported: str, rank: int) -> str:
        names = {_server_name(engine) for engine in self._engines}
        name = next(iter(names)) if len(names) == 1 else reported
        ranked = f"{name}#{rank}"
        return ranked if ranked in self.followers else name

    def _on_report(self, stream: str, changes: Changes) -> None:
        follower = self.followers.get(_backend_of(stream))
        if follower is not None:  # else its backend was removed meanwhile
            follower.on_change(stream, changes)

    def _select_streams(self) -> None:
        """Give every follower its streams; a rank's reports are preferred to its KV events."""
        selected: dict[str, dict[str, EventStream]] = {name: {} for name in self.followers}
        for backend, subscriber in self._subscribers.items():
            selected[backend] |= subscriber.streams
        for name, stream in list(self._receiver.streams.items()):
            backend = _backend_of(name)
            if stream.is_connected and backend in selected:
                selected[backend][name] = stream
        for backend, streams in selected.items():
            self.followers[backend].streams = streams
            self.followers[backend].refresh()

    async def _watch(self, engine: EngineClient) -> None:
        follower = self.followers[engine.name]
        while True:
            found = await discover(engine)
            self._is_down[engine.name] = not found.is_up
            follower.capacity_tokens = found.capacity_tokens or follower.capacity_tokens
            follower.refresh()
            if found.sources and self._settings.endpoint is None:
                await self._subscribe(engine, found.sources)
            is_lost = follower.state is StreamState.FALLBACK
            await asyncio.sleep(_RETRY_S if is_lost or not found.is_up else _RECHECK_S)

    async def _subscribe(self, engine: EngineClient, sources: tuple[EventSource, ...]) -> None:
        if not self._is_subscribing or self._sources.get(engine.name) == sources:
            return
        old = self._subscribers.pop(engine.name, None)
        if old is not None:
            await asyncio.to_thread(old.stop)
        subscriber = Subscriber(sources, on_change=self.followers[engine.name].on_change)
        subscriber.start()
        self._sources[engine.name] = sources
        self._subscribers[engine.name] = subscriber
        self._select_streams()
        where = ", ".join(source.endpoint for source in sources)
        logger.info("backend %s: following its KV events at %s", engine.name, where)

    async def _inspect(self) -> None:
        while True:
            await asyncio.sleep(_INSPECT_S)
            self._receiver.expire(now=time.monotonic())
            self._select_streams()
            self._log_silence()

    def _log_silence(self) -> None:
        """Log once why a stream was silent at two inspections in a row."""
        for backend, stream, silence in self.streams:
            is_idle = stream.is_connected and not self.followers[backend].num_responses
            if silence is None or is_idle or not self._is_up(backend):
                self._silent.pop(stream.name, None)
            elif stream.name not in self._silent:
                self._silent[stream.name] = None
            elif self._silent[stream.name] != silence:
                self._silent[stream.name] = silence
                logger.warning("KV event stream %s: %s", stream.name, silence)


def _server_name(engine: EngineClient) -> str:
    return engine.name if engine.rank is None else engine.name.removesuffix(f"#{engine.rank}")


def _backend_of(stream: str) -> str:
    return stream.rpartition("/")[0]


def _start(work: Coroutine[Any, Any, None], *, name: str) -> "asyncio.Task[None]":
    """Run work until it is cancelled, and log its failure, which is a bug."""
    task = asyncio.create_task(work, name=name)
    task.add_done_callback(_log_failure)
    return task


def _log_failure(task: "asyncio.Task[None]") -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("%s failed", task.get_name(), exc_info=error)
