"""Reasons to prefer a backend, by routing policy, imported on demand."""

from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType

from ragboost.config import RouterSettings
from ragboost.proxy.routing.signals.signal import RoutingSignal

POLICIES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "cache_aware": (
            "load:QueuedWork",
            "prefix_affinity:PrefixAffinity",
            "index_overlap:IndexOverlap",
        ),
        "least_loaded": ("load:QueuedWork",),
    }
)


def make_signals(settings: RouterSettings) -> list[RoutingSignal]:
    signals = []
    for name in POLICIES[settings.policy]:
        module, _, kind = name.partition(":")
        signals.append(getattr(import_module(f"{__name__}.{module}"), kind)(settings))
    return signals
