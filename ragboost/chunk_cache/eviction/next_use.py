"""Keep the entries that waiting requests will use, the soonest longest; rank the others by history.
Our extension of LACR: with a long queue it is Belady's MIN, without one LRU."""

from collections.abc import Collection, Hashable, Sequence

from ragboost.chunk_cache.eviction.policy import EvictionPolicy, Use


class NextUse(EvictionPolicy):
    """Ranking in one number, at most 0 without a waiting use. `counts`: history is the number of
    uses on top of the highest evicted history (LFU with ageing), not the last use."""

    sees_queue = True

    def __init__(self, *, counts: bool = False) -> None:
        self._counts = counts
        self._count: dict[Hashable, int] = {}
        self._history: dict[Hashable, float] = {}
        self._next: dict[Hashable, int] = {}
        self._clock = 0.0

    def used(self, key: Hashable, use: Use) -> None:
        count = self._count[key] = self._count.get(key, 0) + 1
        self._history[key] = self._clock + count if self._counts else use.now

    def priority(self, key: Hashable) -> float:
        position = self._next.get(key)
        if position is not None:
            return 1 / (1 + position)  # the next request: 1, the one after it: 1/2
        # Rises from -1 towards 0 with the history, which is not negative.
        return -1 / (1 + self._history[key])

    def evicted(self, key: Hashable) -> None:
        self._count.pop(key, None)
        history = self._history.pop(key, None)
        if history is not None:
            self._clock = max(self._clock, history)

    def look_ahead(self, waiting: Sequence[Collection[Hashable]]) -> None:
        self._next = {}
        for position, keys in enumerate(waiting):
            for key in keys:
                self._next.setdefault(key, position)
