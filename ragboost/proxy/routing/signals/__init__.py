"""Reasons to prefer a backend, by routing policy."""

from ragboost.config import RouterSettings
from ragboost.proxy.routing.signals.index_overlap import IndexOverlap
from ragboost.proxy.routing.signals.prefix_affinity import PrefixAffinity
from ragboost.proxy.routing.signals.signal import RoutingSignal


def make_signals(settings: RouterSettings) -> list[RoutingSignal]:
    """Return the signals of a policy; the work that waits for a backend counts in all."""
    if settings.policy == "least_loaded":
        return []
    return [PrefixAffinity(), IndexOverlap()]
