"""Count the work of a backend, of this proxy and of others, in tokens."""

from ragboost.proxy.routing.signals.signal import RoutingSignal
from ragboost.proxy.upstream.backend import Backend


class QueuedWork(RoutingSignal):
    def waiting_tokens(self, backend: Backend) -> int:
        load, elsewhere = backend.load, backend.load.elsewhere
        assigned = load.assigned + elsewhere.assigned
        prefill = load.prefill_tokens + elsewhere.prefill_tokens
        return prefill + self._settings.running_tokens * assigned
