"""Which documents recent requests had together: the `popularity` order of a request's tail.

Behind the cached prefix the order is free. What pays later is the order that most future requests
can follow, so each step takes the document with the greatest expected saving: how many recent
contexts hold it together with everything before it, times its tokens. Knows no index.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence

# Measured in docs/lab/ordering.md: without the relevance order as a prior, MultiHop-RAG loses
# 0.007.
_RANK_WEIGHT = 2.0
_RANK_DECAY = 0.8


def _rank_weight(rank: int) -> float:
    return _RANK_WEIGHT * _RANK_DECAY**rank


class RecentContexts:
    """The last `window` contexts as bit sets, one integer per document.

    Memory is bounded by the window: a document that left it is forgotten.
    """

    def __init__(self, *, window: int = 2048) -> None:
        self.window = window
        self._contexts: list[tuple[Hashable, ...]] = []
        self._next = 0
        self._bits: dict[Hashable, int] = {}

    def __repr__(self) -> str:
        return f"RecentContexts(window={self.window})"

    def __len__(self) -> int:
        return len(self._contexts)

    def add(self, documents: Iterable[Hashable]) -> None:
        """Remember a context; the oldest one goes when the window is full."""
        context = tuple(documents)
        bit = 1 << self._next
        if len(self._contexts) < self.window:
            self._contexts.append(context)
        else:
            self._forget(self._contexts[self._next], bit)
            self._contexts[self._next] = context
        for document in context:
            self._bits[document] = self._bits.get(document, 0) | bit
        self._next = (self._next + 1) % self.window

    def order(
        self,
        documents: Sequence[Hashable],
        tokens: Mapping[Hashable, int],
        *,
        prefix: Iterable[Hashable] = (),
    ) -> list[Hashable]:
        """Sort `documents` by expected saving behind `prefix`.

        Args:
            documents: most relevant first. The relevance order counts as `_RANK_WEIGHT` contexts
                more for the first document and fewer for each next one, and decides where no
                recent context says anything.
            tokens: length of each document.
            prefix: the documents before them.
        """
        shared = (1 << self.window) - 1
        known = self._bits
        for document in prefix:
            shared &= known.get(document, 0)
        rest = list(documents)
        bits = [known.get(document, 0) for document in rest]
        lengths = [tokens[document] for document in rest]
        priors = [_rank_weight(rank) * length for rank, length in enumerate(lengths)]
        ordered: list[Hashable] = []
        while rest and shared:
            savings = [
                (held & shared).bit_count() * length + prior
                for held, length, prior in zip(bits, lengths, priors, strict=True)
            ]
            best = savings.index(max(savings))
            if not bits[best] & shared and not any(held & shared for held in bits):
                break
            shared &= bits.pop(best)
            ordered.append(rest.pop(best))
            del lengths[best], priors[best]
        return ordered + rest

    def _forget(self, context: tuple[Hashable, ...], bit: int) -> None:
        for document in set(context):
            left = self._bits[document] & ~bit
            if left:
                self._bits[document] = left
            else:
                del self._bits[document]
