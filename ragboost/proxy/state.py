"""Everything that one proxy app shares between its routes and requests."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Self

from ragboost.cache_sync.sync import CacheSync
from ragboost.config import Settings
from ragboost.proxy.observability.metrics import Metrics
from ragboost.proxy.pipeline import BoostPipeline
from ragboost.proxy.routes.running_turns import RunningTurns
from ragboost.proxy.routing.admission import Dispatcher
from ragboost.proxy.shadow import ShadowPipeline
from ragboost.proxy.upstream.backends import Backends
from ragboost.proxy.upstream.chunk_reuse import ChunkReuseProbe
from ragboost.rewriting.tenants import Tenants
from ragboost.sessions import ChatSessionStore, make_store


@dataclass(frozen=True)
class ProxyState:
    """The state of one app.

    Attributes:
        settings: of the whole package.
        backends: the upstream servers.
        metrics: in a registry of their own.
        sync: follows the backends' prefix caches.
        chunk_reuse: finds out if the backends reuse chunks.
        boosting: prepares completions, or in shadow mode counts what that would save.
        dispatcher: assigns requests to backends.
        store: of the chat sessions.
        turns: the sessions' turns that are being answered.
    """

    settings: Settings
    backends: Backends
    metrics: Metrics
    sync: CacheSync
    chunk_reuse: ChunkReuseProbe
    boosting: BoostPipeline
    dispatcher: Dispatcher
    store: ChatSessionStore
    turns: RunningTurns

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Create the state; `lifespan` opens it."""
        backends, metrics, tenants = Backends.of(settings), Metrics(), Tenants(settings)
        sync = CacheSync(settings, engines=backends.all, tenants=tenants)
        metrics.watch_streams(sync)
        chunk_reuse = ChunkReuseProbe(settings.backend, backends.all)
        pipeline = ShadowPipeline if settings.proxy.shadow else BoostPipeline
        return cls(
            settings,
            backends,
            metrics,
            sync,
            chunk_reuse,
            pipeline(settings, metrics, tenants=tenants, sync=sync, chunk_reuse=chunk_reuse),
            Dispatcher(settings, backends=backends, tenants=tenants),
            make_store(settings.session, on_failure=metrics.session_store_failures.inc),
            RunningTurns(),
        )

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        """Open everything; close it again in the order that loses nothing."""
        await self.store.open()
        self.backends.open()
        try:
            await self.sync.open()
            await self.chunk_reuse.open()
            yield
        finally:
            await self.turns.drain()
            await self.store.close()
            self.dispatcher.close()
            await self.chunk_reuse.close()
            await self.sync.close()
            await self.backends.close()
