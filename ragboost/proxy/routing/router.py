"""Choose a backend for each request.

Scores a backend in tokens: those to be computed for the request and before it, so that a cached
prefix and a long queue can be compared.
"""

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from ragboost.config import RouterSettings
from ragboost.proxy.routing.admission import Admission, MessagePrefix
from ragboost.proxy.routing.signals import CacheReading, RoutingSignal, make_signals
from ragboost.proxy.upstream.backend import Backend
from ragboost.proxy.upstream.backends import Backends, NoBackendError

_UNHEALTHY = 1e15  # tokens; more than any queue
# Load of a running request: a share of the prompt to place, in tokens.
_RUNNING_SHARE = 0.05
_MAX_RUNNING_TOKENS = 512
# Counts of choices are halved then, so that a backend that was away does not get all until it has
# as many as the others.
_MAX_CHOICES = 64
# Bound on the load of a hot document's backend: where documents were sent before is preferred as
# far as the prompt is computed there before one that is a tenth longer would be, uncached and
# behind two average queues (docs/lab/routing.md).
_MAX_PROMPTS = 1.1
_MAX_QUEUES = 2


class Router:
    """Assigns requests to backends; of equal ones, to the one with the fewest lately.

    A choice takes hardly longer for hundreds of backends than for a few: loads are read when they
    change, and each signal says in one reading what all caches hold.
    """

    def __init__(self, backends: Backends, settings: RouterSettings) -> None:
        self.backends = backends
        self._signals = make_signals(settings)
        # Bodies have to be examined: there is a choice, and the contents of caches count.
        self.looks_at_caches = backends.width > 1 and bool(self._signals)
        for signal in self._signals:
            backends.on_down.append(signal.forget)
            backends.on_removed.append(signal.remove)
        # By number of the backend, as of the last change of its load.
        self._waiting = np.zeros(backends.width)
        self._running = np.zeros(backends.width)
        self._changed: set[Backend] = set()
        self._nothing = CacheReading(np.zeros(backends.width))
        self._choices = np.zeros(backends.width)  # lately, by number of the backend
        backends.on_change.append(self._read_backends)
        self._read_backends()

    def _read_backends(self) -> None:
        """Take over the backends; the list of their names is another one each time."""
        self._names = [""] * self.backends.width  # "": no backend has the number
        self._absent = np.full(self.backends.width, np.inf)
        for backend in (*self.backends.all, *self.backends.draining):
            self._names[backend.number] = backend.name
            backend.on_load = partial(self._changed.add, backend)
        self._by_number = {backend.number: backend for backend in self.backends.all}
        self._present = np.array(list(self._by_number), np.int64)
        self._absent[self._present] = 0
        self._changed.clear()
        self._changed.update(self.backends.all)

    def choose(
        self,
        prompt_tokens: int,
        *,
        cached_tokens: Mapping[str, int],
        exclude: Sequence[Backend] = (),
    ) -> Backend | None:
        """Return the backend with the lowest cost for a request; None if all are excluded."""
        cached = np.array([float(cached_tokens.get(name, 0)) for name in self._names])
        return self._cheapest(prompt_tokens, CacheReading(cached), exclude)

    async def place(self, admission: Admission) -> None:
        while True:
            names = self._names
            backend, cached_tokens = await self._choose(admission)
            if names is self._names:  # no backend came or went meanwhile
                break
        admission.assign(backend, cached_tokens=cached_tokens)
        request = admission.request
        self.note_sent(admission, num_bytes=round(request.prompt_tokens / request.tokens_per_byte))

    def note_sent(self, admission: Admission, *, num_bytes: int) -> None:
        for signal in self._signals:
            signal.note_sent(admission.request, admission.backend, num_bytes=num_bytes)

    def sent_bytes(self, prefixes: Sequence[MessagePrefix], num_bytes: int) -> int:
        """Estimate how long a request of so many bytes will be as it is sent."""
        lengths = [signal.sent_bytes(prefixes, num_bytes) for signal in self._signals]
        return max(lengths, default=num_bytes)

    async def _choose(self, admission: Admission) -> tuple[Backend, int]:
        """Return the backend with the lowest cost, and what its cache should hold of a request."""
        names, total = self._names, self._nothing
        readings: list[tuple[RoutingSignal, CacheReading]] = []
        for signal in self._signals if self.looks_at_caches else ():
            if (reading := await signal.read(admission.request, names)) is not None:
                total = CacheReading(
                    np.maximum(total.cached, reading.cached),
                    total.affinity + reading.affinity,
                )
                readings.append((signal, reading))
        backend = self._cheapest(admission.request.prompt_tokens, total)
        if backend is None:
            raise NoBackendError
        admission.cached_by_backend = total.cached
        # Without waiting: else requests would be placed by loads that do not count each other.
        confirmed = [
            signal.cached_at(admission.request, backend, reading) for signal, reading in readings
        ]
        return backend, max(confirmed, default=0)

    def _cheapest(
        self, prompt_tokens: int, reading: CacheReading, exclude: Sequence[Backend] = ()
    ) -> Backend | None:
        """Return the backend with the lowest cost, unhealthy ones last; None: all are excluded."""
        self._update_loads()
        before = np.maximum(prompt_tokens - reading.cached, 0) + self._waiting
        cost = before + self._absent
        cost += self._running * self._tokens_per_running(prompt_tokens)
        if not isinstance(reading.affinity, float):
            queue = self._waiting[self._present].sum() / max(len(self._present), 1)
            latest = _MAX_PROMPTS * prompt_tokens + _MAX_QUEUES * queue
            cost -= np.minimum(reading.affinity, np.maximum(latest - before, 0))
        backends = self.backends.all
        unhealthy = [backend.number for backend in backends if backend.problem is not None]
        for number in unhealthy:
            cost[number] += _UNHEALTHY
        for backend in exclude:
            if backend in backends:  # else its number may be another one's
                cost[backend.number] = np.inf
        lowest = cost.min()
        if lowest == np.inf:
            return None
        equal = (cost == lowest).nonzero()[0]
        number = int(equal[self._choices[equal].argmin()])
        self._choices[number] += 1
        if self._choices[number] >= _MAX_CHOICES:
            self._choices /= 2
        return self._by_number[number]

    def _tokens_per_running(self, prompt_tokens: int) -> float:
        if not prompt_tokens:  # nothing is known about it
            return _MAX_RUNNING_TOKENS
        return min(_RUNNING_SHARE * prompt_tokens, _MAX_RUNNING_TOKENS)

    def _update_loads(self) -> None:
        while self._changed:
            backend = self._changed.pop()
            own, others = backend.load, backend.elsewhere
            self._running[backend.number] = own.assigned + others.assigned
            self._waiting[backend.number] = own.prefill_tokens + others.prefill_tokens
