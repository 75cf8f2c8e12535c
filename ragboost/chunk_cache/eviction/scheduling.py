"""Which waiting request is served next: first come, LPM or LSP.

Baselines for the replacement benchmark: they raise hit rates by order instead of by eviction.
Nothing here knows fairness: under LPM and LSP a request may wait for ever.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from ragboost.chunk_cache.eviction.tree import CacheTree, Forest

Pick = Callable[[Sequence[Sequence[int]], CacheTree, Forest, Sequence[int]], int]
"""Takes the waiting requests, the cache, its forest and the request served last; returns which of
the waiting ones is next. Of equals the one that has waited longest."""


def first_come(
    waiting: Sequence[Sequence[int]], cache: CacheTree, forest: Forest, last: Sequence[int]
) -> int:
    """The one that has waited longest."""
    return 0


def longest_prefix_match(
    waiting: Sequence[Sequence[int]], cache: CacheTree, forest: Forest, last: Sequence[int]
) -> int:
    """The one with the most tokens in the cache (RadixAttention)."""
    return max(range(len(waiting)), key=lambda i: (cache.cached_tokens(waiting[i]), -i))


def longest_shared_prefix(
    waiting: Sequence[Sequence[int]], cache: CacheTree, forest: Forest, last: Sequence[int]
) -> int:
    """The one that shares most tokens with the request served last (BatchLLM), so that those with
    a common prefix come one after the other, whatever the cache holds."""
    common = set(last)

    def shared(i: int) -> int:
        return sum(forest.sizes[node] for node in waiting[i] if node in common)

    return max(range(len(waiting)), key=lambda i: (shared(i), -i))


SCHEDULES: Mapping[str, Pick] = MappingProxyType(
    {"fcfs": first_come, "lpm": longest_prefix_match, "lsp": longest_shared_prefix}
)
