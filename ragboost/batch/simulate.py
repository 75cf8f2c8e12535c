"""Replay document orders through a simulated prefix cache and count the tokens that it saves.

An exact radix tree over documents that evicts the least recently used leaves, as engines do
(RAGBoost section 4.1).
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ragboost.errors import RequestError

TokenCounts = Mapping[Any, int] | Callable[[Any], int]

_ROOT = 0


class HitRate(NamedTuple):
    cached_tokens: int
    prompt_tokens: int

    @property
    def hit_rate(self) -> float:
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0


class SimulatedCache:
    """An engine's prefix cache that serves one request at a time.

    A request matches its longest resident prefix, then the rest is stored. Documents of the request
    are never evicted for it; of a prompt larger than the cache, the prefix that fits is stored.
    """

    # A node is a document behind its prefix. Nodes are rows of columns, not objects: with a million
    # objects, garbage collection would dominate. Rows of evicted nodes are reused.
    #
    # Eviction order: a request touches its whole path, so a node is never older than its
    # descendants, and the nodes last used by request t form a run that ends at the deepest node of
    # t's path. Hence the least recently used leaf is the end of the oldest run: walk the runs from
    # the oldest one, each from its end upwards. No heap, and every touch is visited once.

    def __init__(self, tokens: TokenCounts, *, capacity_tokens: int | None = None) -> None:
        if capacity_tokens is not None and capacity_tokens < 0:
            raise RequestError(
                f"capacity_tokens must be at least 0, got {capacity_tokens}",
                param="capacity_tokens",
            )
        self.num_tokens = 0
        self._count = tokens.__getitem__ if isinstance(tokens, Mapping) else tokens
        self._capacity = capacity_tokens
        self._children: dict[tuple[int, Hashable], int] = {}
        self._key: list[tuple[int, Hashable]] = [(_ROOT, None)]  # (parent, document)
        self._size = [0]  # tokens of the node
        self._last_used = [-1]  # number of the request
        self._free: list[int] = []
        self._ends: list[int] = []  # for each request, the deepest node of its path
        self._oldest = 0  # runs before this one are exhausted

    def request(self, documents: Sequence[Hashable]) -> HitRate:
        """Replay one request: match and then store its documents; return its tokens."""
        sizes = self._sizes(documents)
        now = len(self._ends)
        node, depth, cached_tokens = _ROOT, 0, 0
        for document in documents:
            child = self._children.get((node, document))
            if child is None:
                break
            node = child
            self._last_used[node] = now
            cached_tokens += self._size[node]
            depth += 1
        for document, size in zip(documents[depth:], sizes[depth:], strict=True):
            if not self._make_room(size):
                break
            node = self._add((node, document), size=size, now=now)
        self._ends.append(node)
        return HitRate(cached_tokens, sum(sizes))

    def _sizes(self, documents: Sequence[Hashable]) -> list[int]:
        sizes = [self._count(document) for document in documents]
        if sizes and min(sizes) < 0:
            document = documents[sizes.index(min(sizes))]
            raise RequestError(
                f"tokens of document {document!r} must be at least 0, got {min(sizes)}",
                param="tokens",
            )
        return sizes

    def _add(self, key: tuple[int, Hashable], *, size: int, now: int) -> int:
        self.num_tokens += size
        if self._free:
            node = self._free.pop()
            self._key[node] = key
            self._size[node] = size
            self._last_used[node] = now
        else:
            node = len(self._key)
            self._key.append(key)
            self._size.append(size)
            self._last_used.append(now)
        self._children[key] = node
        return node

    def _make_room(self, wanted: int) -> bool:
        """Evict until `wanted` tokens fit; return False if they do not even then."""
        if self._capacity is None:
            return True
        while self.num_tokens + wanted > self._capacity and self._oldest < len(self._ends):
            node = self._ends[self._oldest]
            if self._last_used[node] != self._oldest:  # used since, or the run is exhausted
                self._oldest += 1
                continue
            key = self._key[node]
            self.num_tokens -= self._size[node]
            del self._children[key]
            self._free.append(node)
            self._last_used[node] = -1
            self._ends[self._oldest] = key[0]
        return self.num_tokens + wanted <= self._capacity


def simulate(
    orders: Iterable[Sequence[Hashable]], tokens: TokenCounts, *, capacity_tokens: int | None
) -> HitRate:
    """Replay requests, as documents in prompt order, through an initially empty prefix cache."""
    cache = SimulatedCache(tokens, capacity_tokens=capacity_tokens)
    cached_tokens = prompt_tokens = 0
    for documents in orders:
        used = cache.request(documents)
        cached_tokens += used.cached_tokens
        prompt_tokens += used.prompt_tokens
    return HitRate(cached_tokens, prompt_tokens)
