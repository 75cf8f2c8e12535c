"""The endpoints for operators: health, readiness, version and metrics."""

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ragboost.cache_sync.sync import CacheSync
from ragboost.proxy.asgi.errors import error_response
from ragboost.proxy.observability.metrics import CONTENT_TYPE, Metrics
from ragboost.proxy.pipeline import BoostPipeline
from ragboost.proxy.routing.admission import Dispatcher
from ragboost.version import __version__


class Status:
    """What operators ask: is it alive, is it ready, what does it count."""

    def __init__(
        self, *, dispatcher: Dispatcher, metrics: Metrics, boosting: BoostPipeline, sync: CacheSync
    ) -> None:
        self._sync = sync
        self._dispatcher = dispatcher
        self._metrics = metrics
        self._boosting = boosting

    async def health(self, _request: Request) -> Response:
        """Liveness: the event loop turns."""
        return JSONResponse({"status": "ok"})

    async def ready(self, _request: Request) -> Response:
        """Readiness: the backend answers."""
        streams = {
            view.stream.name: {"backend": view.backend, "state": view.stream.state}
            for view in self._sync.streams
        }
        detail = {"kv_events": streams} if streams else {}
        if await self._dispatcher.backends.is_ready():
            return JSONResponse({"status": "ready", **detail})
        return JSONResponse({"status": "backend unreachable", **detail}, 503)

    async def no_chunk_reuse(self, _request: Request) -> Response:
        """A proxy in front of this one is not to send `ragboost.chunks`: we add them ourselves."""
        return error_response(404, "RAGBoost's proxy places chunks by itself")

    async def version(self, _request: Request) -> Response:
        """Our version, not the backend's."""
        return JSONResponse({"version": __version__})

    async def metrics(self, _request: Request) -> Response:
        """All metrics in Prometheus text format."""
        self._metrics.index_nodes.set(self._boosting.tenants.num_nodes)
        self._metrics.sessions.set(len(self._boosting.conversations))
        self._metrics.queue_depth.set(self._dispatcher.num_waiting)
        for backend in self._dispatcher.backends.all:
            self._metrics.backend_up.labels(backend.name).set(backend.is_healthy)
            self._metrics.backend_running.labels(backend.name).set(backend.load.running)
        return Response(self._metrics.render(), media_type=CONTENT_TYPE)
