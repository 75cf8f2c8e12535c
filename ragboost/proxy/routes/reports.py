"""`POST /v1/index/events`: the cache reports of the hook inside an engine."""

from starlette.requests import Request
from starlette.responses import Response

from ragboost.cache_sync.sync import CacheSync
from ragboost.config import Settings
from ragboost.engine_hooks.reports import CONTENT_TYPE, REPORT_PATH
from ragboost.proxy.asgi.keys import ApiKeys
from ragboost.proxy.asgi.limits import read_body
from ragboost.proxy.routes.typed_route import TypedRoute

_BODY = {"content": {CONTENT_TYPE: {"schema": {"type": "string", "format": "binary"}}}}


def report_route(settings: Settings, *, sync: CacheSync) -> TypedRoute:
    """Make the route."""
    keys = ApiKeys(settings.proxy.api_keys)

    async def receive_report(request: Request) -> Response:
        """Apply a report of cache events by the in-engine hook; msgpack both ways."""
        keys.check(request.scope["headers"])
        declared = request.headers.get("content-length")
        body = await read_body(request.receive, declared=declared, settings=settings.proxy)
        return Response(await sync.report(body), media_type=CONTENT_TYPE)

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
