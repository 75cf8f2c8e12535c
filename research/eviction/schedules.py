"""Choose the waiting request to serve next: first come first served, LPM or LSP.

Baselines of the eviction benchmark, which raise hit rates by order instead of by eviction. They are
not fair: with LPM and LSP a request may starve.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from research.eviction.cache_tree import CacheTree, Forest

Schedule = Callable[[Sequence[Sequence[int]], CacheTree, Forest, Sequence[int]], int]
"""Takes the waiting requests, the cache, its forest and the last served request; returns the index
of the next one, of equal ones that of the longest waiting."""


def first_come(
    waiting: Sequence[Sequence[int]], cache: CacheTree, forest: Forest, last: Sequence[int]
) -> int:
    """Choose the request that has waited longest."""
    return 0


def longest_prefix_match(
    waiting: Sequence[Sequence[int]], cache: CacheTree, forest: Forest, last: Sequence[int]
) -> int:
    """Choose the request with most tokens in the cache (RadixAttention)."""
    return max(range(len(waiting)), key=lambda i: (cache.cached_tokens(waiting[i]), -i))


def longest_shared_prefix(
    waiting: Sequence[Sequence[int]], cache: CacheTree, forest: Forest, last: Sequence[int]
) -> int:
    """Choose the request that shares most tokens with the last served one (BatchLLM), whatever the
    cache holds."""
    common = set(last)

    def shared(i: int) -> int:
        return sum(forest.sizes[node] for node in waiting[i] if node in common)

    return max(range(len(waiting)), key=lambda i: (shared(i), -i))


SCHEDULES: Mapping[str, Schedule] = MappingProxyType(
    {"fcfs": first_come, "lpm": longest_prefix_match, "lsp": longest_shared_prefix}
)
