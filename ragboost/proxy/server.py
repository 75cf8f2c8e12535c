"""Serve the proxy on a socket: uvicorn with uvloop, limits, graceful shutdown."""

import asyncio
import gc
import logging
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from starlette.types import ASGIApp

from ragboost.cache_sync.discovery import configured_source
from ragboost.cache_sync.subscriber import Subscriber
from ragboost.config import ProxySettings, Settings
from ragboost.config.proxy import public_url
from ragboost.errors import ConfigError
from ragboost.proxy.app import create_app
from ragboost.proxy.asgi.hosts import HostCheck, is_loopback
from ragboost.proxy.serving.server import BACKLOG, bind, make_config
from ragboost.proxy.sessions import make_store, store_class

logger = logging.getLogger(__name__)

_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def serve(settings: Settings) -> None:
    """Serve the proxy until SIGTERM, SIGINT or SIGHUP, then finish requests and close all."""
    proxy = settings.proxy
    _check_exposure(proxy)
    asyncio.run(_check_store(settings))
    _check_events(settings)
    server = make_server(guarded(create_app(settings), proxy), proxy)
    with _signals_only_stop(server):
        listener = listen(proxy)
        _log_address(settings, listener)
        _collect_rarely()
        server.run(sockets=[listener])


def _collect_rarely() -> None:
    """Take garbage collections out of the requests' time: a tenth of it with Python's defaults.

    Requests leave no cycles, so that few collections find anything; what was loaded stays.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)


async def _check_store(settings: Settings) -> None:
    """Open the file of the chat sessions once: an error inside the server is a traceback."""
    if store_class(settings.session).is_on_disk:
        store = make_store(settings)
        await store.open()
        await store.close()


def _check_events(settings: Settings) -> None:
    """Open the stream of the backend's KV events once, for the same reason."""
    hooks = settings.engine_hooks
    source = configured_source(hooks, name="engine_hooks.endpoint")
    if source is None or settings.proxy.shadow:
        return
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
    urls = [public_url(replica.url) for replica in settings.backends or (settings.backend,)]
    where = settings.backend.file or ", ".join(urls)
    logger.info("listening on http://%s:%d, backend %s", _netloc(host), port, where)


def listen(settings: ProxySettings) -> socket.socket:
    """Listen on the configured address; port 0 picks a free one."""
    listener = bind(settings.host, settings.port)
    listener.listen(BACKLOG)
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
    return _Server(make_config(app, settings))


class _Server(uvicorn.Server):
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and say last where clients and people go."""
        await super().startup(sockets)
        for listener in sockets or ():
            host, port = listener.getsockname()[:2]
            url = f"http://{_netloc(host)}:{port}"
            logger.info("clients: %s/v1", url)
            logger.info("dashboard: %s/dashboard", url)


def _netloc(host: str) -> str:
    return f"[{host}]" if ":" in host else host


@contextmanager
def _signals_only_stop(server: uvicorn.Server) -> Iterator[None]:
    """Let a signal stop the server, also before uvicorn handles signals, and nothing else.

    The one that uvicorn raises again after its shutdown would kill the process before the caller
    has closed the embedded engine, for example. SIGHUP stays ignored where it is, as by nohup.
    """

    def stop(*_: object) -> None:
        server.should_exit = True

    previous = {number: signal.getsignal(number) for number in _STOP_SIGNALS}
    previous = {number: each for number, each in previous.items() if each is not signal.SIG_IGN}
    for number in previous:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
