"""Order a request's tail by the documents that recent requests had together (`popularity`).

Behind the cached prefix any order will do now; the best one for the future is the one that most
later requests can follow. So each step takes the document with the greatest expected saving: the
number of recent contexts that hold it with everything before it, times its tokens. Knows no index.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence

# The relevance order as a prior: without it, MultiHop-RAG loses 0.007 (docs/lab/ordering.md).
_RANK_WEIGHT = 2.0
_RANK_DECAY = 0.8


class RecentContexts:
    """The documents of the last `window` contexts, as one bit set per document.

    Memory is bounded by the window: documents outside it are forgotten.
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
        """Add a context, replacing the oldest one if the window is full."""
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
        """Sort documents by expected saving behind a prefix.

        The relevance order counts as `_RANK_WEIGHT` more contexts for the first document and fewer
        for each next one; it decides where recent contexts do not.

        Args:
            documents: most relevant first.
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
        priors = [_RANK_WEIGHT * _RANK_DECAY**rank * n for rank, n in enumerate(lengths)]
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
