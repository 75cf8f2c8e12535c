"""Compare a request's documents with what the context index of each backend says is cached."""

from ragboost.proxy.routing.request import RoutingRequest
from ragboost.proxy.routing.signals.signal import RoutingSignal
from ragboost.proxy.upstream.backends import Backend


class IndexOverlap(RoutingSignal):
    """The cached prefix that a request would have if its documents were ordered for it."""

    reads_caches = True

    async def cached_tokens(self, request: RoutingRequest, backend: Backend) -> int:
        """Return the tokens of that prefix."""
        leading = request.leading
        if leading is None or request.tenant is None:
            return 0
        async with request.tenant.lock:
            booster = request.tenant.booster(backend.name)
            return booster.cached_tokens(leading.documents, preamble=leading.preamble)
