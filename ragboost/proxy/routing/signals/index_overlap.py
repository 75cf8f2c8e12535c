"""Compare a request's documents with what the context index of each backend says is cached."""

from ragboost.proxy.routing.admission import Admission
from ragboost.proxy.routing.signals.signal import RoutingSignal
from ragboost.proxy.upstream.backends import Backend


class IndexOverlap(RoutingSignal):
    """The cached prefix that a request would have if its documents were ordered for it."""

    reads_caches = True

    async def cached_tokens(self, admission: Admission, backend: Backend) -> int:
        leading = admission.leading
        if leading is None or admission.tenant is None:
            return 0
        async with admission.tenant.lock:
            booster = admission.tenant.booster(backend.name)
            return booster.cached_tokens(leading.documents, prompt_prefix=leading.prompt_prefix)
