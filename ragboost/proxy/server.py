"""Run the proxy on a socket: uvicorn with uvloop and httptools, limits, and a drain at shutdown."""

import ctypes
import gc
import logging
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_address

import uvicorn
from fastapi import FastAPI

from ragboost.config import ProxySettings, Settings
from ragboost.errors import ConfigError
from ragboost.proxy.app import create_app
from ragboost.proxy.asgi.uvicorn_protocol import limited_protocol
from ragboost.serving import bind

logger = logging.getLogger(__name__)

_BACKLOG = 4096
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of <malloc.h>


def serve(settings: Settings) -> None:
    """Serve the proxy until SIGTERM or SIGINT, then drain; returns when all is closed.

    Raises:
        ConfigError: the address cannot be bound, or others reach it and there are no API keys.
    """
    proxy = settings.proxy
    if not (is_loopback(proxy.host) or proxy.api_keys):
        if not proxy.insecure:
            raise ConfigError(
                f"proxy.host is {proxy.host!r}: whoever reaches it could use the backend; set "
                "proxy.api_keys (RAGBOOST_PROXY__API_KEYS), or proxy.insecure (--insecure)"
            )
        logger.warning("proxy.host is %s without API keys: everybody is let in", proxy.host)
    listener = listen(proxy)
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    urls = ", ".join(replica.url for replica in settings.backends) or settings.backend.url
    logger.info("listening on http://%s:%d, backend %s", shown, port, urls)
    server = make_server(create_app(settings), settings.proxy)
    # What is here now stays for good: full garbage collections need not look at it again.
    gc.collect()
    gc.freeze()
    # Requests leave hardly any cycles, and looking for them every 700 objects costs 3 % of each.
    gc.set_threshold(10_000, 20, 20)
    _keep_freed_memory()
    with _signals_only_stop():
        server.run(sockets=[listener])


def listen(settings: ProxySettings) -> socket.socket:
    """Listen on the configured address; port 0 picks a free one.

    Raises:
        ConfigError: the address is taken or not ours.
    """
    listener = bind(settings.host, settings.port)
    listener.listen(_BACKLOG)
    return listener


def is_loopback(host: str) -> bool:
    """Tell whether only this machine can reach an address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def make_server(app: FastAPI, settings: ProxySettings) -> uvicorn.Server:
    """Make a server; `server.run(sockets=[listen(settings)])` serves until SIGTERM or SIGINT.

    It then stops to listen, lets running requests finish within `drain_s`, and closes the app.
    """
    return uvicorn.Server(
        uvicorn.Config(
            app,
            loop="uvloop",
            http=limited_protocol(settings),
            ws="none",
            lifespan="on",
            access_log=False,
            log_config=None,
            log_level="warning",
            server_header=False,
            date_header=False,
            proxy_headers=False,
            timeout_keep_alive=settings.keep_alive_s,
            timeout_graceful_shutdown=settings.drain_s,
            backlog=_BACKLOG,
        )
    )


def _keep_freed_memory() -> None:
    """Let glibc's malloc reuse what large bodies were in, up to 64 MB, instead of returning it to
    the kernel and having it zeroed again for the next one: a fifth of what 400 KB cost."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # other libraries know neither it nor the problem
        mallopt(_M_MMAP_THRESHOLD, 4 * 1024 * 1024)
        mallopt(_M_TRIM_THRESHOLD, 64 * 1024 * 1024)


@contextmanager
def _signals_only_stop() -> Iterator[None]:
    """Keep uvicorn from raising the signal again when it has drained, which would kill the process
    before the caller has closed what is behind the proxy."""
    signals = (signal.SIGINT, signal.SIGTERM)
    old = [signal.signal(number, lambda *_: None) for number in signals]
    try:
        yield
    finally:
        for number, handler in zip(signals, old, strict=True):
            signal.signal(number, handler)
