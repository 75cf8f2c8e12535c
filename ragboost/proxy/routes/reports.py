"""`POST /v1/index/events`: the cache reports of the hook inside an engine."""

from starlette.requests import Request
from starlette.responses import Response

from ragboost.engine_hooks.reports import CONTENT_TYPE, REPORT_PATH
from ragboost.proxy.asgi.keys import ApiKeys
from ragboost.proxy.asgi.limits import read_body
from ragboost.proxy.routes.typed_route import TypedRoute
from ragboost.proxy.state import ProxyState

_BODY = {"content": {CONTENT_TYPE: {"schema": {"type": "string", "format": "binary"}}}}


def report_route(state: ProxyState) -> TypedRoute:
    """Make the route."""
    settings = state.settings.proxy
    keys = ApiKeys(settings.api_keys)

    async def receive_report(request: Request) -> Response:
        """Apply a report of cache events by the in-engine hook; msgpack both ways."""
        keys.check(request.scope["headers"])
        declared = request.headers.get("content-length")
        body = await read_body(request.receive, declared=declared, settings=settings)
        return Response(await state.sync.report(body), media_type=CONTENT_TYPE)

    return TypedRoute(
        REPORT_PATH,
        receive_report,
        method="POST",
        tag="engine hooks",
        errors=(400, 401, 408, 413),
        response_class=Response,
        responses={200: _BODY},
        openapi_extra={"requestBody": _BODY},
    )
