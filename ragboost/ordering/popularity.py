"""Order a request's tail by the documents that recent requests had together (`popularity`).

Behind the cached prefix any order will do now; the best one for the future is the one that most
later requests can follow. If a later request holds document i with probability p_i, the expected
saving is greatest in the order of p_i / (1 - p_i) times tokens. Each step estimates p_i from the
recent contexts that hold everything before it, and from the relevance order: the request counts as
a few more contexts, which hold a document the more often, the better its rank. Knows no index.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence

# Measured in docs/lab/ordering.md.
_PRIOR_CONTEXTS = 5.0
_BEST_RANK = 0.85
_RANK_DECAY = 0.95


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
        """Sort documents by expected saving behind a prefix; see the module.

        Args:
            documents: most relevant first.
            tokens: length of each document.
            prefix: the documents before them.
        """
        known = self._bits
        shared = (1 << len(self._contexts)) - 1
        for document in prefix:
            shared &= known.get(document, 0)
        rest = list(documents)
        bits = [known.get(document, 0) for document in rest]
        lengths = [tokens[document] for document in rest]
        priors = [_PRIOR_CONTEXTS * _BEST_RANK * _RANK_DECAY**rank for rank in range(len(rest))]
        ordered: list[Hashable] = []
        while rest and shared:
            total = shared.bit_count() + _PRIOR_CONTEXTS
            savings = [
                (wanted := (held & shared).bit_count() + prior) / (total - wanted) * length
                for held, length, prior in zip(bits, lengths, priors, strict=True)
            ]
            best = savings.index(max(savings))
            shared &= bits.pop(best)
            ordered.append(rest.pop(best))
            del lengths[best], priors[best]
        alone = [p / (_PRIOR_CONTEXTS - p) * n for p, n in zip(priors, lengths, strict=True)]
        return ordered + [rest[i] for i in sorted(range(len(rest)), key=lambda i: -alone[i])]

    def _forget(self, context: tuple[Hashable, ...], bit: int) -> None:
        for document in set(context):
            left = self._bits[document] & ~bit
            if left:
                self._bits[document] = left
            else:
                del self._bits[document]
