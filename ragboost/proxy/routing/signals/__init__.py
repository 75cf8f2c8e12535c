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


def make_signals(settings: RouterSettings, *, kept_s: float = 0.0) -> list[RoutingSignal]:
    signals = []
    for name in POLICIES[settings.policy]:
        module, _, kind = name.partition(":")
        signal = getattr(import_module(f"{__name__}.{module}"), kind)
        signals.append(signal(settings, kept_s=kept_s))
    return signals
