"""`POST /v1/index/events`: the cache reports of the hook inside an engine.

A report decides what a backend is believed to hold, so it needs a key that no client has.
"""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ragboost.config import Settings
from ragboost.engine_hooks.reports import CONTENT_TYPE, REPORT_PATH
from ragboost.errors import ConfigError, RequestError
from ragboost.proxy.asgi.client_exchange import ClientExchange
from ragboost.proxy.asgi.keys import ApiKeys, UnauthorizedError
from ragboost.proxy.state import ProxyState

_SETTING = "engine_hooks.report_key (RAGBOOST_ENGINE_HOOKS__REPORT_KEY)"
_LOCAL = ("127.", "::1", "::ffff:127.")


class ReportsForbiddenError(RequestError):
    status = 403


class _ReportKey:
    """Admits the hook and no client, whose key must be another one."""

    def __init__(self, settings: Settings) -> None:
        key = settings.engine_hooks.report_key
        if key is not None and key in settings.proxy.client_keys:
            raise ConfigError(f"{_SETTING} is also in proxy.api_keys: choose another key")
        self._keys = None if key is None else ApiKeys([key])
        self._is_open = not settings.proxy.has_keys

    def check(self, request: Request) -> None:
        """Check the key of a report; without one configured, that it comes from this machine."""
        if self._keys is None:
            host = request.client.host if request.client else ""
            if not self._is_open or not host.startswith(_LOCAL):
                raise ReportsForbiddenError(
                    f"reports need a key: set {_SETTING} for the proxy and for the engine"
                )
            return
        try:
            self._keys.check(request.scope["headers"])
        except UnauthorizedError as error:
            raise UnauthorizedError(f"{error}; reports need the key of {_SETTING}") from None


def report_route(state: ProxyState) -> Route:
    key = _ReportKey(state.settings)

    async def receive_report(request: Request) -> Response:
        """Apply a report of cache events by the in-engine hook; msgpack both ways."""
        key.check(request)
        exchange = ClientExchange.of(request, endpoint="reports")
        try:
            answer = await state.sync.report(await state.bodies.read(exchange))
        finally:
            state.bodies.release(exchange)
        return Response(answer, media_type=CONTENT_TYPE)

    return Route(REPORT_PATH, receive_report, methods=["POST"])
