"""Everything that one proxy app shares between its routes and requests."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

from ragboost.booster.tenants import Tenants
from ragboost.cache_sync.sync import CacheSync
from ragboost.config import Settings
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
from ragboost.proxy.replicas.messages import LoadBoard, MessageHandler
from ragboost.proxy.replicas.redis_transport import RedisTransport
from ragboost.proxy.routes.running_turns import RunningTurns
from ragboost.proxy.routing.dispatcher import Dispatcher
from ragboost.proxy.sessions import make_store, store_class
from ragboost.proxy.upstream.backends import Backends
from ragboost.proxy.upstream.engines import Engines
from ragboost.proxy.watched_file import Refresher


class ProxyState:
    """The parts of one app. `settings` are those of the whole package."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.backends, tenants = Backends.of(settings), Tenants(settings)
        self.metrics = metrics = Metrics(is_shadow=settings.proxy.shadow)
        # Follows the backends' prefix caches.
        self.sync = CacheSync(settings, engines=self.backends.all, tenants=tenants)
        metrics.watch_streams(self.sync)
        # Find out what the backends are, and if they reuse chunks.
        self.engines = Engines(settings.backend, self.backends.all)
        self.error_bar = ErrorBar(settings.reuse, self.engines, metrics)
        self.dispatcher = Dispatcher(settings, backends=self.backends, tenants=tenants)
        # The load that other processes put on the backends.
        self.board = LoadBoard(self.backends.all, on_change=self.dispatcher.update)
        # Before the handlers, which need the followers.
        self.backends.inform(self.sync, self.engines, self.board)
        self.replicas = self._connect_replicas()
        self.boosting = BoostPipeline(
            settings,
            metrics,
            tenants=tenants,
            sync=self.sync,
            engines=self.engines,
            dispatcher=self.dispatcher,
            error_bar=self.error_bar,
        )
        self.recent, self.hold_out = RecentRequests(), HoldOut()
        record = settings.proxy.record
        self.log = None if record is None else RequestLog(record, count=metrics.count_recorded)
        learning = partial(learn, sync=self.sync, metrics=metrics)
        # Of completions that have ended.
        self.observers: list[Observer] = [self.recent.done, metrics.done, learning]
        if settings.boost.share < 1:
            self.observers.append(self.hold_out.done)
        if self.log is not None:
            self.observers.insert(0, self.log.done)
        # Of the chat sessions, with the turns that are being answered.
        self.store = make_store(settings, on_failure=metrics.session_store_failures.inc)
        self.turns = RunningTurns()
        self.keys = ApiKeys.watched(settings, self.backends.sources)  # of the clients
        self.bodies = RequestBodies(settings.proxy)
        interval_s = settings.router.health_interval_s
        self.refresher = Refresher(self.backends.sources, interval_s=interval_s)

    def _connect_replicas(self) -> RedisTransport | None:
        """Exchange load and prompts with replicas of the proxy; without Redis there are none."""
        settings, is_shadow = self.settings, self.settings.proxy.shadow
        if not store_class(settings.session).connects_replicas:
            return None
        board = self.board
        if is_shadow:  # prompts were not sent
            handler = MessageHandler(self.backends.all, {}, board)
        else:
            text = "Prompts of other replicas that this process's indexes have taken over."
            learned = self.metrics.counter("ragboost_replica_prompts_learned_total", text)
            followers, inc = self.sync.followers, learned.inc
            handler = MessageHandler(self.backends.all, followers, board, on_learned=inc)
        self.backends.inform(handler)
        return RedisTransport(settings.session, handler)

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        """Open everything; close it again in the order that loses nothing."""
        if self.log is not None:
            self.log.open()
        await self.store.open()
        await self.backends.open()
        try:
            await self.sync.open()
            await self.engines.open()
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
            await self.engines.close()
            await self.sync.close()
            await self.backends.close()
            if self.log is not None:
                await self.log.close()
