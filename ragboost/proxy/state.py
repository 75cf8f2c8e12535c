"""Everything that one proxy app shares between its routes and requests."""

import secrets
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Self

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from ragboost.booster.tenants import Tenants
from ragboost.cache_sync.sync import CacheSync
from ragboost.config import ProxySettings, Settings
from ragboost.proxy.asgi.keys import ApiKeys
from ragboost.proxy.observability.metrics import Metrics
from ragboost.proxy.observability.recent_requests import RecentRequests
from ragboost.proxy.observability.request_log import RequestLog
from ragboost.proxy.pipeline import BoostPipeline
from ragboost.proxy.routes.running_turns import RunningTurns
from ragboost.proxy.routing.chunk_announcer import ChunkAnnouncer
from ragboost.proxy.routing.dispatcher import Dispatcher
from ragboost.proxy.upstream.backends import Backends
from ragboost.proxy.upstream.chunk_reuse import ChunkReuseProbe
from ragboost.proxy.upstream.engine_kind import EngineKinds
from ragboost.proxy.watched_file import Refresher
from ragboost.proxy.workers.identity import WorkerIdentity
from ragboost.proxy.workers.load_board import LoadBoard
from ragboost.proxy.workers.message_handler import MessageHandler
from ragboost.proxy.workers.redis_transport import RedisTransport
from ragboost.proxy.workers.worker_pool import WorkerPool
from ragboost.sessions import ChatSessionStore, make_store, store_class


@dataclass(frozen=True)
class ProxyState:
    settings: Settings  # of the whole package
    backends: Backends
    metrics: Metrics  # in a registry of their own
    sync: CacheSync  # follows the backends' prefix caches
    chunk_reuse: ChunkReuseProbe  # finds out if the backends reuse chunks
    kinds: EngineKinds  # finds out what the backends are
    announcer: ChunkAnnouncer  # tells them which chunks a waiting request needs
    boosting: BoostPipeline  # prepares completions, or in shadow mode counts what that would save
    recent: RecentRequests  # the last completions, for the dashboard
    dispatcher: Dispatcher  # assigns requests to backends
    store: ChatSessionStore  # of the chat sessions
    turns: RunningTurns  # the sessions' turns that are being answered
    board: LoadBoard  # the load that other processes put on the backends
    workers: WorkerPool | None  # the other workers of this proxy; None if there are none
    # Exchanges load and prompts with replicas of the proxy; None without Redis.
    replicas: RedisTransport | None
    log: RequestLog | None  # of `proxy.record`
    keys: ApiKeys  # of the clients
    refresher: Refresher  # reads keys and the list of backends again

    @classmethod
    def of(cls, settings: Settings, identity: WorkerIdentity | None = None) -> Self:
        """Create the state; without an identity there are no other workers."""
        backends, metrics, tenants = Backends.of(settings), Metrics(), Tenants(settings)
        sync = CacheSync(settings, engines=backends.all, tenants=tenants)
        metrics.watch_streams(sync)
        chunk_reuse = ChunkReuseProbe(settings.backend, backends.all)
        kinds = EngineKinds(backends.all)
        announcer = ChunkAnnouncer(chunk_reuse, settings.hints, count=metrics.count_announcement)
        dispatcher = Dispatcher(settings, backends=backends, tenants=tenants)
        board = LoadBoard(backends.all, on_change=dispatcher.update)
        backends.inform(
            sync, chunk_reuse, kinds, board
        )  # before the handlers, which need the followers
        workers = replicas = None
        name = secrets.token_hex(8)
        if identity is not None:
            name, most = identity.name(identity.worker_id), settings.session.max_sessions
            handler = MessageHandler(
                backends.all, sync.followers, board, max_histories=most * len(identity.others)
            )
            backends.inform(handler)
            workers = WorkerPool(identity, settings.backend, handler)
            _watch_workers(metrics, workers)
        if store_class(settings.session).connects_replicas:
            is_shadow = settings.proxy.shadow  # its prompts are not what was sent
            handler = MessageHandler(backends.all, {} if is_shadow else sync.followers, board)
            backends.inform(handler)
            replicas = RedisTransport(settings.session, handler, name=name)
            if not is_shadow:
                _watch_prompts(metrics, "replica", handler)
        pipeline = BoostPipeline(
            settings,
            metrics,
            tenants=tenants,
            sync=sync,
            chunk_reuse=chunk_reuse,
            kinds=kinds,
            dispatcher=dispatcher,
            workers=workers,
        )
        return cls(
            settings,
            backends,
            metrics,
            sync,
            chunk_reuse,
            kinds,
            announcer,
            pipeline,
            RecentRequests(),
            dispatcher,
            make_store(settings.session, on_failure=metrics.session_store_failures.inc),
            RunningTurns(),
            board,
            workers,
            replicas,
            _request_log(settings.proxy, metrics, identity),
            ApiKeys.watched(settings, backends.sources),
            Refresher(backends.sources, interval_s=settings.router.health_interval_s),
        )

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        """Open everything; close it again in the order that loses nothing."""
        if self.log is not None:
            self.log.open()
        await self.store.open()
        await self.backends.open()
        try:
            await self.sync.open()
            await self.chunk_reuse.open()
            await self.kinds.open()
            async with AsyncExitStack() as stack:
                for part in (self.refresher, self.board, self.workers, self.replicas):
                    if part is not None:
                        stack.push_async_callback(part.close)
                        await part.open()
                yield
        finally:
            await self.turns.drain()
            await self.store.close()
            self.dispatcher.close()
            await self.announcer.close()
            await self.kinds.close()
            await self.chunk_reuse.close()
            await self.sync.close()
            await self.backends.close()
            if self.log is not None:
                await self.log.close()


def _watch_workers(metrics: Metrics, workers: WorkerPool) -> None:
    text = "Other workers of this proxy that were heard lately."
    metrics.watch(GaugeMetricFamily, "ragboost_workers_alive", text, lambda: workers.num_alive)
    _watch_prompts(metrics, "worker", workers.handler)


def _watch_prompts(metrics: Metrics, whose: str, handler: MessageHandler) -> None:
    text = f"Prompts of other {whose}s that this process's indexes have taken over."
    name = f"ragboost_{whose}_prompts_learned"
    metrics.watch(CounterMetricFamily, name, text, lambda: handler.learned)


def _request_log(
    settings: ProxySettings, metrics: Metrics, identity: WorkerIdentity | None
) -> RequestLog | None:
    path = settings.record
    if path is None:
        return None
    if identity is not None:
        path = path.with_name(f"{path.stem}.{identity.worker_id}{path.suffix}")
    return RequestLog(path, max_bytes=settings.record_max_bytes, count=metrics.count_recorded)
