"""Run an app on a socket: uvicorn with uvloop and httptools, limits, and a drain at shutdown."""

import socket
from ipaddress import ip_address

import uvicorn
from fastapi import FastAPI

from ragboost.config import ProxySettings
from ragboost.errors import ConfigError
from ragboost.proxy.protocol import limited_protocol


def bind(settings: ProxySettings) -> socket.socket:
    """Listen on the configured address; port 0 picks a free one.

    Raises:
        ConfigError: the address is taken or not ours.
    """
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"cannot listen on {settings.host}:{settings.port} (proxy.host, proxy.port): "
            f"{error.strerror}"
        ) from None
    return listener


def is_loopback(host: str) -> bool:
    """Tell whether only this machine can reach an address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def make_server(app: FastAPI, settings: ProxySettings) -> uvicorn.Server:
    """Make a server; `server.run(sockets=[bind(settings)])` serves until SIGTERM or SIGINT.

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
            backlog=4096,
        )
    )
