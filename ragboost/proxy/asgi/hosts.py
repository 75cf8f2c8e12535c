"""Refuse requests that a web page sends to a proxy on this machine.

A page whose name resolves to 127.0.0.1 (DNS rebinding) may read the responses, and any page may
send a request. Knows the headers `host` and `origin`, which browsers do not let pages choose.
"""

from collections.abc import Sequence
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from ragboost.proxy.asgi.errors import error_response
from ragboost.requests.headers import printable

_MAX_SEEN = 256
_NOT_IN_HOST = frozenset("@/?#\\")


class HostCheck:
    """An ASGI app in front of another one that accepts local requests only, and allowed names."""

    def __init__(self, app: ASGIApp, allowed: Sequence[str]) -> None:
        self._app = app
        self._allowed = frozenset(name.lower() for name in allowed)
        self._accepted: set[bytes] = set()  # values of headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            for name, value in scope["headers"]:
                if name in (b"host", b"origin") and value not in self._accepted:
                    host = _host_of(value.decode("latin-1"))
                    if not self._is_allowed(host):
                        await _refuse(name.decode(), host)(scope, receive, send)
                        return
                    if len(self._accepted) < _MAX_SEEN:
                        self._accepted.add(value)
        await self._app(scope, receive, send)

    def _is_allowed(self, host: str) -> bool:
        return is_loopback(host) or host.endswith(".localhost") or host in self._allowed


def is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _host_of(value: str) -> str:
    """Return the name in a `host` or an `origin`; empty if it is malformed."""
    _, has_scheme, rest = value.partition("://")
    netloc = rest if has_scheme else value
    if not _NOT_IN_HOST.isdisjoint(netloc):
        return ""
    try:
        return (urlsplit("//" + netloc).hostname or "").removesuffix(".")
    except ValueError:
        return ""


def _refuse(name: str, host: str) -> ASGIApp:
    return error_response(
        403,
        f"the request's {name} {printable(host)!r} is not this machine: add it to "
        "proxy.allowed_hosts (RAGBOOST_PROXY__ALLOWED_HOSTS), or set proxy.api_keys",
    )
