"""Everything that one proxy app shares between its routes and requests."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Self

from ragboost.booster.tenants import Tenants
from ragboost.cache_sync.sync import CacheSync
from ragboost.config import ProxySettings, Settings
from ragboost.proxy.asgi.keys import ApiKeys
from ragboost.proxy.asgi.request_body import RequestBodies
from ragboost.proxy.cache_learning import learn
from ragboost.proxy.observability.hold_out import HoldOut
from ragboost.proxy.observability.metrics import Metrics
from ragboost.proxy.observability.recent_requests import RecentRequests
from ragboost.proxy.observability.request_log import RequestLog
from ragboost.proxy.pipeline import BoostPipeline
from ragboost.proxy.quality.error_bar import ErrorBar
from ragboost.proxy.records import Observer
from ragboost.proxy.replicas.load_board import LoadBoard
from ragboost.proxy.replicas.messages import MessageHandler
from ragboost.proxy.replicas.redis_transport import RedisTransport
from ragboost.proxy.routes.running_turns import RunningTurns
from ragboost.proxy.routing.dispatcher import Dispatcher
from ragboost.proxy.sessions import ChatSessionStore, make_store, store_class
from ragboost.proxy.upstream.backends import Backends
from ragboost.proxy.upstream.chunk_reuse import ChunkReuseProbe
from ragboost.proxy.upstream.engine_kind import EngineKinds
from ragboost.proxy.watched_file import Refresher


@dataclass(frozen=True)
class ProxyState:
    settings: Settings  # of the whole package
    backends: Backends
    metrics: Metrics  # in a registry of their own
    sync: CacheSync  # follows the backends' prefix caches
    chunk_reuse: ChunkReuseProbe  # finds out if the backends reuse chunks
    error_bar: ErrorBar  # checks answers with reused chunks
    kinds: EngineKinds  # finds out what the backends are
    boosting: BoostPipeline  # prepares completions, or in shadow mode counts what that would save
    hold_out: HoldOut  # what it saves, by the hold-out of boost.share
    recent: RecentRequests  # the last completions, for the dashboard
    observers: Sequence[Observer]  # of completions that have ended
    dispatcher: Dispatcher  # assigns requests to backends
    store: ChatSessionStore  # of the chat sessions
    turns: RunningTurns  # the sessions' turns that are being answered
    board: LoadBoard  # the load that other processes put on the backends
    # Exchanges load and prompts with replicas of the proxy; None without Redis.
    replicas: RedisTransport | None
    log: RequestLog | None  # of `proxy.record`
    keys: ApiKeys  # of the clients
    bodies: RequestBodies  # of the running requests
    refresher: Refresher  # reads keys and the list of backends again

    @classmethod
    def of(cls, settings: Settings) -> Self:
        backends, tenants = Backends.of(settings), Tenants(settings)
        metrics = Metrics(is_shadow=settings.proxy.shadow)
        sync = CacheSync(settings, engines=backends.all, tenants=tenants)
        metrics.watch_streams(sync)
        chunk_reuse = ChunkReuseProbe(settings.backend, backends.all)
        error_bar = ErrorBar(settings.reuse, chunk_reuse, metrics)
        kinds = EngineKinds(backends.all)
        dispatcher = Dispatcher(settings, backends=backends, tenants=tenants)
        board = LoadBoard(backends.all, on_change=dispatcher.update)
        # Before the handlers, which need the followers.
        backends.inform(sync, chunk_reuse, kinds, board)
        replicas = None
        if store_class(settings.session).connects_replicas:
            is_shadow = settings.proxy.shadow  # its prompts are not what was sent
            handler = MessageHandler(backends.all, {} if is_shadow else sync.followers, board)
            backends.inform(handler)
            replicas = RedisTransport(settings.session, handler)
            if not is_shadow:
                handler.on_learned = metrics.replica_prompts().inc
        pipeline = BoostPipeline(
            settings,
            metrics,
            tenants=tenants,
            sync=sync,
            chunk_reuse=chunk_reuse,
            kinds=kinds,
            dispatcher=dispatcher,
            error_bar=error_bar,
        )
        recent, hold_out = RecentRequests(), HoldOut()
        log = _request_log(settings.proxy, metrics)
        learning = partial(learn, sync=sync, metrics=metrics)
        observers: list[Observer] = [recent.done, metrics.done, learning]
        if settings.boost.share < 1:
            observers.append(hold_out.done)
        if log is not None:
            observers.insert(0, log.done)
        return cls(
            settings,
            backends,
            metrics,
            sync,
            chunk_reuse,
            error_bar,
            kinds,
            pipeline,
            hold_out,
            recent,
            observers,
            dispatcher,
            make_store(settings, on_failure=metrics.session_store_failures.inc),
            RunningTurns(),
            board,
            replicas,
            log,
            ApiKeys.watched(settings, backends.sources),
            RequestBodies(settings.proxy),
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
                for part in (self.refresher, self.board, self.replicas, self.error_bar):
                    if part is not None:
                        stack.push_async_callback(part.close)
                        await part.open()
                yield
        finally:
            await self.turns.drain()
            await self.store.close()
            self.dispatcher.close()
            await self.kinds.close()
            await self.chunk_reuse.close()
            await self.sync.close()
            await self.backends.close()
            if self.log is not None:
                await self.log.close()


def _request_log(settings: ProxySettings, metrics: Metrics) -> RequestLog | None:
    if settings.record is None:
        return None
    return RequestLog(settings.record, count=metrics.count_recorded)
