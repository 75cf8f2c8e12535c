"""Compare a request's documents with what the context indexes of all backends say is cached."""

from collections.abc import Sequence

from ragboost.proxy.routing.admission import RoutingRequest
from ragboost.proxy.routing.signals.signal import (
    CacheReading,
    RoutingSignal,
    spread,
)
from ragboost.proxy.upstream.backend import Backend

# Tokens of lead for each token of a document that a backend was sent lately. More finds more in the
# caches, and lets requests wait behind each other: docs/lab/routing.md.
_AFFINITY = 1.25


class IndexOverlap(RoutingSignal):
    """The cached prefix that a request would have if its documents were ordered for it.

    Before documents have a common prefix anywhere, they go where they, or those that come with
    them, were sent before: a lead of their tokens, which a longer queue outweighs. Then a prefix
    forms there, and a hot document gets a second backend when its own has too much to do.
    """

    async def read(self, request: RoutingRequest, names: Sequence[str]) -> CacheReading | None:
        leading, tenant = request.leading, request.tenant
        if leading is None or tenant is None:
            return None
        columns = self.columns(names, tenant.numbers)  # while these names are the backends'
        async with tenant.lock:
            residents = tenant.residents(leading.documents, prompt_prefix=leading.prompt_prefix)
        cached, recent = spread(columns, residents.cached, residents.recent)
        return CacheReading(cached, _AFFINITY * recent)

    def cached_at(self, request: RoutingRequest, backend: Backend, reading: CacheReading) -> int:
        leading, tenant = request.leading, request.tenant
        if leading is None or tenant is None or not reading.cached[backend.number]:
            return 0
        if tenant.lock.locked():  # a thread uses the index
            return int(reading.cached[backend.number])
        booster = tenant.booster(backend.name)
        return booster.cached_tokens(leading.documents, prompt_prefix=leading.prompt_prefix)
