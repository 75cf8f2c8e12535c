"""`POST /v1/index/events`: the cache reports of the hook inside an engine."""

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ragboost.cache_sync.sync import CacheSync
from ragboost.config import Settings
from ragboost.engine_hooks.reports import CONTENT_TYPE
from ragboost.errors import RequestError
from ragboost.proxy.asgi.keys import ApiKeys
from ragboost.proxy.asgi.limits import ClientDisconnectedError, read_body
from ragboost.proxy.asgi.request_context import RequestContext
from ragboost.rewriting.headers import get_header


class Reports:
    """Takes the reports of the in-engine hook: `POST /v1/index/events`, msgpack both ways."""

    endpoint = "index_events"

    def __init__(self, settings: Settings, *, sync: CacheSync) -> None:
        self._settings = settings.proxy
        self._keys = ApiKeys(settings.proxy.api_keys)
        self._sync = sync

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one report."""
        exchange = RequestContext(scope, receive, send, endpoint=self.endpoint)
        declared = get_header(exchange.headers, b"content-length")
        try:
            self._keys.check(exchange.headers)
            body = await read_body(receive, declared=declared, settings=self._settings)
            answer = await self._sync.report(body)
        except RequestError as error:
            await exchange.send_error(error.status, str(error), param=error.param)
        except ClientDisconnectedError:
            return
        else:
            await Response(answer, media_type=CONTENT_TYPE)(scope, receive, send)
