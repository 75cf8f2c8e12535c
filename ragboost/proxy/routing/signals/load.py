"""Count the work of a backend, of this proxy and of others, in tokens."""

from ragboost.proxy.routing.signals.signal import RoutingSignal
from ragboost.proxy.upstream.backend import Backend


class QueuedWork(RoutingSignal):
    def waiting_tokens(self, backend: Backend) -> int:
        return backend.load.prefill_tokens + backend.elsewhere.prefill_tokens
