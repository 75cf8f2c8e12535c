"""Routing policies to compare with the product's: what other routers do, in the same simulation.

They take the place of `Router.place`, and see documents and loads only.
"""

import random
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ragboost.proxy.routing.admission import Admission
from ragboost.proxy.routing.router import Router
from ragboost.proxy.upstream.backend import Backend

MATCH_SHARE = 0.3
MAX_IMBALANCE, MAX_IMBALANCE_RATIO = 64, 1.5
MAX_PREFIXES = 20_000


class FirstDocument:
    """Hash the most relevant document: the same one always goes to the same engine."""

    def __init__(self, router: Router) -> None:
        self._backends = router.backends.all

    async def place(self, admission: Admission) -> None:
        first = _keys(admission)[0]
        admission.assign(self._backends[zlib.crc32(first.encode()) % len(self._backends)])


class CacheAware:
    """Follow the longest prefix as it came, as the `cache_aware` of vLLM's and SGLang's routers.

    A match of at least MATCH_SHARE goes to the engine that was sent it, any other request to the
    engine that was sent the fewest prefixes. If requests in flight differ by more than both bounds,
    the least loaded one is chosen. Documents stand for the characters of a prompt.
    """

    def __init__(self, router: Router) -> None:
        self._backends = router.backends.all
        self._sent: dict[tuple[str, ...], Backend] = {}  # oldest first
        self._sizes = dict.fromkeys(self._backends, 0)

    async def place(self, admission: Admission) -> None:
        keys = _keys(admission)
        prefixes = [keys[:end] for end in range(len(keys), 0, -1)]
        loads = {backend: backend.load.assigned for backend in self._backends}
        least, most = min(loads.values()), max(loads.values())
        matched = next((prefix for prefix in prefixes if prefix in self._sent), ())
        if most - least > MAX_IMBALANCE and most > MAX_IMBALANCE_RATIO * least:
            backend = min(loads, key=loads.__getitem__)
        elif len(matched) >= MATCH_SHARE * len(keys):
            backend = self._sent[matched]
        else:
            backend = min(self._sizes, key=self._sizes.__getitem__)
        for prefix in prefixes:
            self._forget(prefix)
            self._sent[prefix] = backend
            self._sizes[backend] += 1
        while len(self._sent) > MAX_PREFIXES:
            self._forget(next(iter(self._sent)))
        admission.assign(backend)

    def _forget(self, prefix: tuple[str, ...]) -> None:
        backend = self._sent.pop(prefix, None)
        if backend is not None:
            self._sizes[backend] -= 1


class TwoChoices:
    """Send to the less loaded of two random engines."""

    def __init__(self, router: Router) -> None:
        self._backends: Sequence[Backend] = router.backends.all
        self._rng = random.Random(1)

    async def place(self, admission: Admission) -> None:
        pair = self._rng.choices(self._backends, k=2)
        admission.assign(min(pair, key=lambda backend: backend.load.assigned))


POLICIES: Mapping[str, Callable[[Router], Any]] = {
    "first_document": FirstDocument,
    "prefix_tree": CacheAware,
    "two_choices": TwoChoices,
}


def _keys(admission: Admission) -> tuple[str, ...]:
    assert admission.request.leading is not None, "simulated requests have documents"
    return tuple(document.key for document in admission.request.leading.documents)
