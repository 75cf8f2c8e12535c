"""Everything that one proxy app shares between its routes and requests."""

import secrets
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Self

from ragboost.cache_sync.sync import CacheSync
from ragboost.config import Settings
from ragboost.proxy.observability.metrics import Metrics
from ragboost.proxy.peers.fellows import FellowWorkers
from ragboost.proxy.peers.load_board import LoadBoard
from ragboost.proxy.peers.seat import WorkerSeat
from ragboost.proxy.peers.shared_loads import SharedLoads
from ragboost.proxy.peers.shared_prompts import SharedPrompts
from ragboost.proxy.pipeline import BoostPipeline
from ragboost.proxy.routes.running_turns import RunningTurns
from ragboost.proxy.routing.admission import Dispatcher
from ragboost.proxy.shadow import ShadowPipeline
from ragboost.proxy.upstream.backends import Backends
from ragboost.proxy.upstream.chunk_reuse import ChunkReuseProbe
from ragboost.rewriting.tenants import Tenants
from ragboost.sessions import ChatSessionStore, make_store, store_class


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
        board: the load that other processes put on the backends.
        fellows: the other workers of this proxy; None if there are none.
        shared_loads: exchanges the load with replicas of the proxy; None without Redis.
        shared_prompts: exchanges with them what was sent to the backends; None without Redis.
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
    board: LoadBoard
    fellows: FellowWorkers | None
    shared_loads: SharedLoads | None
    shared_prompts: SharedPrompts | None

    @classmethod
    def of(cls, settings: Settings, seat: WorkerSeat | None = None) -> Self:
        """Create the state; `lifespan` opens it.

        Args:
            settings: of the proxy.
            seat: of this process among the workers; None: there are no others.
        """
        backends, metrics, tenants = Backends.of(settings), Metrics(), Tenants(settings)
        sync = CacheSync(settings, engines=backends.all, tenants=tenants)
        metrics.watch_streams(sync)
        chunk_reuse = ChunkReuseProbe(settings.backend, backends.all)
        dispatcher = Dispatcher(settings, backends=backends, tenants=tenants)
        board = LoadBoard(backends.all, on_change=dispatcher.update)
        fellows = None
        if seat is not None:
            fellows = FellowWorkers(seat, settings, sync=sync, board=board)
            metrics.watch_workers(fellows)
        name = f"{seat.group}/{seat.number}" if seat is not None else secrets.token_hex(8)
        loads = prompts = None
        if store_class(settings.session).connects_replicas:
            loads = SharedLoads(settings.session, board, name=name)
            if not settings.proxy.shadow:  # its prompts are not what was sent
                prompts = SharedPrompts(settings.session, backends.all, sync.followers, name=name)
                metrics.watch_replicas(prompts.learner)
        pipeline = ShadowPipeline if settings.proxy.shadow else BoostPipeline
        parts = {"tenants": tenants, "sync": sync, "chunk_reuse": chunk_reuse, "fellows": fellows}
        return cls(
            settings,
            backends,
            metrics,
            sync,
            chunk_reuse,
            pipeline(settings, metrics, **parts),  # type: ignore[arg-type]
            dispatcher,
            make_store(settings.session, on_failure=metrics.session_store_failures.inc),
            RunningTurns(),
            board,
            fellows,
            loads,
            prompts,
        )

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        """Open everything; close it again in the order that loses nothing."""
        await self.store.open()
        self.backends.open()
        try:
            await self.sync.open()
            await self.chunk_reuse.open()
            async with AsyncExitStack() as stack:
                for part in (self.board, self.fellows, self.shared_loads, self.shared_prompts):
                    if part is not None:
                        stack.push_async_callback(part.close)
                        await part.open()
                yield
        finally:
            await self.turns.drain()
            await self.store.close()
            self.dispatcher.close()
            await self.chunk_reuse.close()
            await self.sync.close()
            await self.backends.close()
