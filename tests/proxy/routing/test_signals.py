"""Routing signals: the list that a policy names, and how their tokens are combined."""

import pytest

from ragboost.booster.tenants import Tenants
from ragboost.config import RouterSettings, Settings
from ragboost.proxy.routing.admission import Admission
from ragboost.proxy.routing.dispatcher import Dispatcher
from ragboost.proxy.routing.signals import POLICIES, make_signals
from ragboost.proxy.routing.signals.signal import RoutingSignal
from ragboost.proxy.upstream.backends import Backend, Backends


@pytest.mark.parametrize("policy", POLICIES)
def test_every_signal_of_a_policy_can_be_made(policy: str) -> None:
    signals = make_signals(RouterSettings.model_validate({"policy": policy}))

    assert len(signals) == len(POLICIES[policy])
    assert all(isinstance(signal, RoutingSignal) for signal in signals)


class Favourite(RoutingSignal):
    """Expects everything in the cache of one backend, behind a long queue."""

    reads_caches = True

    async def cached_tokens(self, admission: Admission, backend: Backend) -> int:
        return admission.prompt_tokens if backend.name == "b" else 0

    def waiting_tokens(self, backend: Backend) -> int:
        return 400 if backend.name == "b" else 0


@pytest.mark.parametrize(("prompt_tokens", "expected"), [(300, "a"), (500, "b")])
async def test_a_further_signal_counts_in_tokens(prompt_tokens: int, expected: str) -> None:
    settings = Settings(backends=[{"url": "http://a"}, {"url": "http://b"}])  # type: ignore[arg-type]
    dispatcher = Dispatcher(settings, backends=Backends.of(settings), tenants=Tenants(settings))
    dispatcher.router._signals.append(Favourite(settings.router))
    admission = dispatcher.admission()
    admission.prompt_tokens = prompt_tokens

    await dispatcher.enter(admission)

    assert admission.backend.name == expected
