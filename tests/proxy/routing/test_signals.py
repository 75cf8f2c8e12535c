"""Routing signals: how their tokens are combined."""

from collections.abc import Sequence

import numpy as np
import pytest

from ragboost.booster.tenants import Tenants
from ragboost.config import Settings
from ragboost.proxy.routing.admission import RoutingRequest
from ragboost.proxy.routing.dispatcher import Dispatcher
from ragboost.proxy.routing.signals import CacheReading, RoutingSignal
from ragboost.proxy.upstream.backends import Backends


class Favourite(RoutingSignal):
    """Expects everything in the cache of one backend, behind a long queue."""

    async def read(self, request: RoutingRequest, names: Sequence[str]) -> CacheReading:
        cached = np.array([float(request.prompt_tokens) * (name == "b") for name in names])
        return CacheReading(cached, np.zeros(len(names)))


@pytest.mark.parametrize(("prompt_tokens", "expected"), [(300, "a"), (500, "b")])
async def test_a_further_signal_counts_in_tokens(prompt_tokens: int, expected: str) -> None:
    settings = Settings(backends=[{"url": "http://a"}, {"url": "http://b"}])  # type: ignore[arg-type]
    dispatcher = Dispatcher(settings, backends=Backends.of(settings), tenants=Tenants(settings))
    dispatcher.router._signals.append(Favourite())
    dispatcher.backends.all[1].add_load(prefill_tokens=400)
    admission = dispatcher.admission(RoutingRequest(prompt_tokens=prompt_tokens))

    await dispatcher.enter(admission)

    assert admission.backend.name == expected
