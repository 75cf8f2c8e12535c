"""Serve the proxy on a socket: uvicorn with uvloop, limits, graceful shutdown."""

import ctypes
import gc
import logging
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from starlette.types import ASGIApp

from ragboost.config import ProxySettings, Settings
from ragboost.config.proxy import public_url
from ragboost.errors import ConfigError
from ragboost.proxy.app import create_app
from ragboost.proxy.asgi.hosts import HostCheck, is_loopback
from ragboost.serving import bind
from ragboost.serving.connection import http_connection

logger = logging.getLogger(__name__)

_BACKLOG = 4096
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # of <malloc.h>


def serve(settings: Settings) -> None:
    """Serve the proxy until SIGTERM or SIGINT, then finish running requests and close everything.

    Raises:
        ConfigError: the address cannot be bound, or it is not a loopback address and there are no
            API keys.
    """
    proxy = settings.proxy
    if not (is_loopback(proxy.host) or proxy.api_keys):
        if not proxy.insecure:
            raise ConfigError(
                f"proxy.host is {proxy.host!r}, which would let other machines use the backend; "
                "set proxy.api_keys (RAGBOOST_PROXY__API_KEYS), or proxy.insecure (--insecure)"
            )
        logger.warning(
            "proxy.host is %s without API keys: every client that reaches it can use the backend",
            proxy.host,
        )
    listener = listen(proxy)
    host, port = listener.getsockname()[:2]
    netloc = f"[{host}]" if ":" in host else host
    urls = [public_url(replica.url) for replica in settings.backends or (settings.backend,)]
    logger.info("listening on http://%s:%d, backend %s", netloc, port, ", ".join(urls))
    server = make_server(guarded(create_app(settings), proxy), proxy)
    _tune_garbage_collection()
    _tune_malloc()
    with _signals_only_stop():
        server.run(sockets=[listener])


def listen(settings: ProxySettings) -> socket.socket:
    """Listen on the configured address; port 0 picks a free one.

    Raises:
        ConfigError: the address cannot be bound.
    """
    listener = bind(settings.host, settings.port)
    listener.listen(_BACKLOG)
    return listener


def guarded(app: ASGIApp, settings: ProxySettings) -> ASGIApp:
    """Return an app that only local requests reach, if nothing else keeps web pages out."""
    if is_loopback(settings.host) and not settings.api_keys:
        return HostCheck(app, settings.allowed_hosts)
    return app


def make_server(app: ASGIApp, settings: ProxySettings) -> uvicorn.Server:
    """Make a server; `server.run(sockets=[listen(settings)])` serves until SIGTERM or SIGINT.

    It then stops listening, lets running requests finish within `drain_s`, and closes the app.
    """
    return uvicorn.Server(
        uvicorn.Config(
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
    )


def _tune_garbage_collection() -> None:
    # Objects that exist at start live until the end; full collections need not traverse them.
    gc.collect()
    gc.freeze()
    # Requests create hardly any cycles; with the default of 700 objects, the search for them takes
    # 3 % of a request's time.
    gc.set_threshold(10_000, 20, 20)


def _tune_malloc() -> None:
    """Let glibc's malloc keep up to 64 MB of freed memory for the next large bodies, in one heap.

    Memory returned to the kernel is zeroed again on reuse, a fifth of the cost of a 400 KB request.
    With a heap per thread, each of the threads for bodies, stores and event streams would keep its
    own peak: new threads follow every restart of an engine. The GIL leaves little to contend for.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # only glibc has it
        mallopt(_M_ARENA_MAX, 1)
        mallopt(_M_MMAP_THRESHOLD, 4 * 1024 * 1024)
        mallopt(_M_TRIM_THRESHOLD, 64 * 1024 * 1024)


@contextmanager
def _signals_only_stop() -> Iterator[None]:
    """Ignore the signal that uvicorn raises again after its shutdown.

    It would kill the process before the caller has closed the embedded engine, for example.
    """
    signals = (signal.SIGINT, signal.SIGTERM)
    previous = [signal.signal(number, lambda *_: None) for number in signals]
    try:
        yield
    finally:
        for number, handler in zip(signals, previous, strict=True):
            signal.signal(number, handler)
