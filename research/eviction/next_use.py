"""Next use: evict what no waiting request will use."""

from collections.abc import Collection, Hashable, Sequence

from ragboost.chunk_cache.eviction import EvictionPolicy, Use


class NextUse(EvictionPolicy):
    """Keep the entries that waiting requests will use, the soonest longest; others by their last
    use. Our extension of LACR: with a long queue it is Belady's MIN, without one LRU."""

    sees_queue = True

    def __init__(self) -> None:
        self._history: dict[Hashable, float] = {}
        self._next: dict[Hashable, int] = {}

    def used(self, key: Hashable, use: Use) -> None:
        self._history[key] = use.now

    def priority(self, key: Hashable) -> float:
        position = self._next.get(key)
        if position is not None:
            return 1 / (1 + position)  # the next request: 1, the one after it: 1/2
        # Rises from -1 towards 0 with the history, which is not negative.
        return -1 / (1 + self._history[key])

    def evicted(self, key: Hashable) -> None:
        self._history.pop(key, None)

    def look_ahead(self, waiting: Sequence[Collection[Hashable]]) -> None:
        self._next = {}
        for position, keys in enumerate(waiting):
            for key in keys:
                self._next.setdefault(key, position)
