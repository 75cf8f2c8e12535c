"""Serve the proxy on a socket: uvicorn with uvloop, limits, graceful shutdown."""

import asyncio
import logging
import socket
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import uvicorn
from starlette.types import ASGIApp

from ragboost.cache_sync.discovery import configured_source
from ragboost.cache_sync.subscriber import Subscriber
from ragboost.config import ProxySettings, SessionSettings, Settings
from ragboost.config.proxy import public_url
from ragboost.errors import ConfigError
from ragboost.proxy.app import create_app
from ragboost.proxy.asgi.hosts import HostCheck, is_loopback
from ragboost.proxy.memory import bounded_malloc, short_collections
from ragboost.proxy.workers.identity import WorkerIdentity
from ragboost.serving import bind
from ragboost.serving.connection import http_connection
from ragboost.serving.supervisor import Supervisor, WorkerLink, stop_signals
from ragboost.sessions import make_store, store_class

logger = logging.getLogger(__name__)

_BACKLOG = 4096


def serve(settings: Settings, *, set_up_logging: Callable[[], None] | None = None) -> None:
    """Serve the proxy until SIGTERM, SIGINT or SIGHUP, then finish requests and close everything.

    With `proxy.workers`, other processes serve, and call `set_up_logging`, a top-level function.
    """
    proxy = settings.proxy
    _check_exposure(proxy)
    asyncio.run(_check_store(settings.session))
    _check_events(settings)
    if proxy.workers > 1:
        _serve_with_workers(settings, set_up_logging)
        return
    server = make_server(guarded(create_app(settings), proxy), proxy)
    with bounded_malloc(), short_collections(), _signals_only_stop(server):
        listener = listen(proxy)
        _log_address(settings, listener)
        server.run(sockets=[listener])


async def _check_store(settings: SessionSettings) -> None:
    """Open the file of the chat sessions once: an error inside the server is a traceback."""
    if store_class(settings).is_on_disk:
        store = make_store(settings)
        await store.open()
        await store.close()


def _check_events(settings: Settings) -> None:
    """Open the stream of the backend's KV events once, for the same reason."""
    hooks = settings.engine_hooks
    source = configured_source(hooks, name="engine_hooks.endpoint")
    if source is None or settings.proxy.shadow:
        return
    if hooks.bind and settings.proxy.workers > 1:
        raise ConfigError("engine_hooks.bind needs proxy.workers = 1: one process can bind")
    with Subscriber([source]):
        pass


def _check_exposure(proxy: ProxySettings) -> None:
    if not (is_loopback(proxy.host) or proxy.has_keys):
        if not proxy.insecure:
            raise ConfigError(
                f"proxy.host is {proxy.host!r}, which would let other machines use the backend; "
                "set proxy.api_keys (RAGBOOST_PROXY__API_KEYS), or proxy.insecure (--insecure)"
            )
        logger.warning(
            "proxy.host is %s without API keys: every client that reaches it can use the backend",
            proxy.host,
        )


def _log_address(settings: Settings, listener: socket.socket) -> None:
    host, port = listener.getsockname()[:2]
    netloc = f"[{host}]" if ":" in host else host
    urls = [public_url(replica.url) for replica in settings.backends or (settings.backend,)]
    where = settings.backend.file or ", ".join(urls)
    logger.info("listening on http://%s:%d, backend %s", netloc, port, where)


def _serve_with_workers(settings: Settings, set_up_logging: Callable[[], None] | None) -> None:
    """Serve with several processes, each with a socket of its own on the same port.

    The kernel spreads connections over the sockets, which this process keeps open until it stops:
    those of a worker that died wait for the next one.
    """
    proxy = settings.proxy
    bind(proxy.host, proxy.port).close()  # shared sockets would join another proxy's port
    with _temporary_folder() as folder, ExitStack() as sockets:
        first = sockets.enter_context(bind(proxy.host, proxy.port, is_shared=True))
        port = first.getsockname()[1]
        listeners = [first]
        listeners += [
            sockets.enter_context(bind(proxy.host, port, is_shared=True))
            for _ in range(proxy.workers - 1)
        ]
        shared = _shared_settings(settings, Path(folder))
        identities = WorkerIdentity.of_all(proxy.workers, folder)
        supervisor = Supervisor(
            _run_worker,
            [(shared, *each, set_up_logging) for each in zip(identities, listeners, strict=True)],
            drain_s=proxy.drain_s,
        )
        supervisor.run(on_ready=partial(_log_address, settings, first), on_stop=sockets.close)


def _temporary_folder() -> TemporaryDirectory[str]:
    try:
        return TemporaryDirectory(prefix="ragboost-")
    except OSError as error:
        raise ConfigError(
            f"proxy.workers need a folder for temporary files: {error.strerror}; set TMPDIR"
        ) from None


def _shared_settings(settings: Settings, folder: Path) -> Settings:
    """Return the settings of a worker: a store of one process becomes a file that lives as long."""
    if store_class(settings.session).is_shared:
        return settings
    update = {"store": "sqlite", "path": folder / "sessions.db"}
    return settings.model_copy(update={"session": settings.session.model_copy(update=update)})


def _run_worker(
    link: WorkerLink,
    settings: Settings,
    identity: WorkerIdentity,
    listener: socket.socket,
    set_up_logging: Callable[[], None] | None,
) -> None:
    if set_up_logging is not None:
        set_up_logging()
    proxy = settings.proxy
    listener.listen(_BACKLOG)
    own = bind("127.0.0.1", 0)
    own.listen(_BACKLOG)
    identity = replace(identity, port=own.getsockname()[1])
    app = guarded(create_app(settings, identity=identity), proxy)
    server = _WorkerServer(_server_config(app, proxy), link)
    with bounded_malloc(), short_collections(), _signals_only_stop(server):
        server.run(sockets=[listener, own])


class _WorkerServer(uvicorn.Server):
    """A server that reports to a supervisor, and stops when that has died."""

    def __init__(self, config: uvicorn.Config, link: WorkerLink) -> None:
        super().__init__(config)
        self._link = link

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        asyncio.get_running_loop().add_reader(self._link.fileno(), self._stop)
        self._link.ready()

    def _stop(self) -> None:
        asyncio.get_running_loop().remove_reader(self._link.fileno())
        logger.warning("the supervisor has died; stopping")
        self.should_exit = True


def listen(settings: ProxySettings) -> socket.socket:
    """Listen on the configured address; port 0 picks a free one."""
    listener = bind(settings.host, settings.port)
    listener.listen(_BACKLOG)
    return listener


def guarded(app: ASGIApp, settings: ProxySettings) -> ASGIApp:
    """Return an app that only local requests reach, if nothing else keeps web pages out."""
    if is_loopback(settings.host) and not settings.has_keys:
        return HostCheck(app, settings.allowed_hosts)
    return app


def make_server(app: ASGIApp, settings: ProxySettings) -> uvicorn.Server:
    """Make a server; `server.run(sockets=[listen(settings)])` serves until SIGTERM or SIGINT.

    It then stops listening, lets running requests finish within `drain_s`, and closes the app.
    """
    return uvicorn.Server(_server_config(app, settings))


def _server_config(app: ASGIApp, settings: ProxySettings) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        loop="uvloop",
        http=http_connection(settings),
        ws="none",
        lifespan="on",
        access_log=False,
        log_config=None,
        log_level="warning",
        server_header=False,
        date_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=settings.drain_s,
        backlog=_BACKLOG,
    )


def _signals_only_stop(server: uvicorn.Server) -> AbstractContextManager[None]:
    """Let a signal stop the server, also before uvicorn handles signals, and nothing else.

    The one that uvicorn raises again after its shutdown would kill the process before the caller
    has closed the embedded engine, for example.
    """

    def stop(*_: object) -> None:
        server.should_exit = True

    return stop_signals(stop)
