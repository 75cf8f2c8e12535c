"""Choose a backend for each request.

Scores a backend in tokens: those to be computed for the request and before it, so that a cached
prefix and a long queue can be compared. Does not know bodies, sockets or time.
"""

from collections.abc import Mapping, Sequence

from ragboost.config import RouterSettings
from ragboost.proxy.routing.admission import Admission
from ragboost.proxy.routing.signals import make_signals
from ragboost.proxy.routing.signals.prefix_affinity import PrefixAffinity
from ragboost.proxy.upstream.backends import Backend, Backends


class Router:
    """Assigns requests to backends; of equal ones, to the one with the fewest so far."""

    def __init__(self, backends: Backends, settings: RouterSettings) -> None:
        self.backends = backends
        self._signals = make_signals(settings)
        affinities = [s for s in self._signals if isinstance(s, PrefixAffinity)]
        self.prefixes = affinities[0] if affinities else PrefixAffinity(settings)
        # Bodies have to be examined: there is a choice, and the contents of caches count.
        self.looks_at_caches = len(backends.all) > 1 and any(
            signal.reads_caches for signal in self._signals
        )
        backends.on_down.append(lambda backend: self.prefixes.forget(backend.name))

    def choose(
        self,
        prompt_tokens: int,
        *,
        cached_tokens: Mapping[str, int],
        exclude: Sequence[Backend] = (),
    ) -> Backend | None:
        """Return the backend with the lowest cost for a request; None if all are excluded.

        Args:
            cached_tokens: how many of these each backend's prefix cache holds, by its name.
        """

        def cost(backend: Backend) -> tuple[int, int]:
            compute = max(0, prompt_tokens - cached_tokens.get(backend.name, 0))
            waiting = sum(signal.waiting_tokens(backend) for signal in self._signals)
            return compute + waiting, backend.load.dispatched

        return min(self.backends.candidates(exclude), key=cost, default=None)

    async def place(self, admission: Admission) -> None:
        admission.cached_by_backend = cached = await self._cached_tokens(admission)
        backend = self.choose(admission.prompt_tokens, cached_tokens=cached)
        assert backend is not None, "there are no backends"
        admission.assign(backend, cached_tokens=cached.get(backend.name, 0))
        if admission.prefixes:
            num_bytes = round(admission.prompt_tokens / admission.tokens_per_byte)
            self.prefixes.remember(backend.name, admission.prefixes, num_bytes=num_bytes)

    async def _cached_tokens(self, admission: Admission) -> dict[str, int]:
        cached: dict[str, int] = {}
        if self.looks_at_caches:
            readers = [signal for signal in self._signals if signal.reads_caches]
            for backend in self.backends.candidates():
                cached[backend.name] = max(
                    [await signal.cached_tokens(admission, backend) for signal in readers]
                )
        return cached
