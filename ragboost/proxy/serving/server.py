"""Serve an ASGI application with uvicorn: in a thread, or in the foreground."""

import logging
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from ragboost.config import ProxySettings
from ragboost.errors import ConfigError
from ragboost.proxy.serving.guarded_protocol import guarded_protocol

logger = logging.getLogger(__name__)

_START_TIMEOUT_S = 60.0
BACKLOG = 4096


@contextmanager
def serve_in_thread(app: Any, *, port: int = 0) -> Iterator[str]:
    """Serve an ASGI app in a background thread, on a free port if 0; yield its URL."""
    listening = bind("127.0.0.1", port)
    server = uvicorn.Server(make_config(app, ProxySettings(drain_s=5)))
    thread = threading.Thread(
        target=server.run, kwargs={"sockets": [listening]}, name="ragboost-serve", daemon=True
    )
    thread.start()
    try:
        _wait_until_started(server, thread)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        listening.close()


def serve(app: Any, *, host: str, port: int) -> None:
    """Serve `app` until SIGINT or SIGTERM."""
    listening = bind(host, port)
    logger.info("listening on http://%s:%d", host, listening.getsockname()[1])
    try:
        uvicorn.Server(make_config(app, ProxySettings())).run(sockets=[listening])
    finally:
        listening.close()


def bind(host: str, port: int) -> socket.socket:
    """Bind a socket to an address, a free port if 0; raise ConfigError if that fails."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except OSError as error:
        listening.close()
        raise ConfigError(
            f"cannot listen on {host}:{port}: {error.strerror}; choose another address or port"
        ) from None
    return listening


def make_config(app: Any, limits: ProxySettings) -> uvicorn.Config:
    """Return how uvicorn serves an app: with guarded connections, without words of its own."""
    return uvicorn.Config(
        app,
        loop="uvloop",
        http=guarded_protocol(limits),
        ws="none",
        lifespan="on",
        access_log=False,
        log_config=None,  # its lines are of our log's format
        log_level="warning",
        server_header=False,
        date_header=False,
        proxy_headers=False,
        timeout_keep_alive=limits.keep_alive_s,
        timeout_graceful_shutdown=limits.drain_s,
        backlog=BACKLOG,
    )


def _wait_until_started(server: uvicorn.Server, thread: threading.Thread) -> None:
    deadline = time.monotonic() + _START_TIMEOUT_S
    while not server.started:
        if not thread.is_alive() or time.monotonic() > deadline:
            raise ConfigError("the server did not start; see its log")
        time.sleep(0.01)
