"""The interface of a routing signal."""

from ragboost.config import RouterSettings
from ragboost.proxy.routing.admission import Admission
from ragboost.proxy.upstream.backends import Backend


class RoutingSignal:
    """One reason to prefer a backend, in tokens, so that reasons can be compared.

    A request goes to the backend with the fewest tokens to compute for it and before it: its own
    without the highest `cached_tokens` of all signals, plus the sum of their `waiting_tokens`.
    """

    reads_caches = False  # `cached_tokens` is worth asking, so bodies have to be examined

    def __init__(self, settings: RouterSettings) -> None:
        self._settings = settings

    async def cached_tokens(self, admission: Admission, backend: Backend) -> int:
        """Return the tokens of a request that the backend's prefix cache should hold."""
        return 0

    def waiting_tokens(self, backend: Backend) -> int:
        """Return the tokens to compute before a request that is assigned to the backend now."""
        return 0
