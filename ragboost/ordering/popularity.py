"""Order a request's tail by the documents that recent requests had together (`popularity`).

If a later request holds document i with probability p_i, the expected saving is greatest in the
order of p_i / (1 - p_i) times tokens. The recent contexts with the same prefix, the ranks of the
request itself and a prior from the corpus, whose weight fades, estimate p_i at each step.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence

from ragboost.ordering.prior import CorpusPrior

# Measured in docs/lab/ordering.md.
_PRIOR_CONTEXTS = 5.0
_BEST_RANK = 0.85
_RANK_DECAY = 0.95
_CORPUS_WEIGHT = 0.5  # of a context of the corpus, before any request
_CORPUS_HALF_LIFE = 200.0  # requests after which it weighs half as much


class RecentContexts:
    """The documents of the last `window` contexts, as one bit set per document.

    Memory is bounded by the window: documents outside it are forgotten.

    Args:
        prior: which documents of the corpus are retrieved together; None: nothing is known.
    """

    def __init__(self, prior: CorpusPrior | None = None, *, window: int = 2048) -> None:
        self.window = window
        self._prior = prior
        self._num_added = 0
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
        self._num_added += 1

    def order(
        self,
        documents: Sequence[Hashable],
        tokens: Mapping[Hashable, int],
        *,
        prefix: Sequence[Hashable] = (),
    ) -> list[Hashable]:
        """Sort documents by expected saving behind a prefix; see the module."""
        bits_of, corpus = self._bits, self._prior
        shared = (1 << len(self._contexts)) - 1
        for document in prefix:
            shared &= bits_of.get(document, 0)
        rest = list(documents)
        bits = [bits_of.get(document, 0) for document in rest]
        lengths = [tokens[document] for document in rest]
        ranks = [_PRIOR_CONTEXTS * _BEST_RANK * _RANK_DECAY**rank for rank in range(len(rest))]
        weight = _CORPUS_WEIGHT * _CORPUS_HALF_LIFE / (_CORPUS_HALF_LIFE + self._num_added)
        imagined = corpus.behind(prefix) if corpus else frozenset()
        in_corpus = [corpus.holders(document) for document in rest] if corpus else []
        ordered: list[Hashable] = []
        while rest and (shared or imagined):
            counts = [
                (holders & shared).bit_count() + rank
                for holders, rank in zip(bits, ranks, strict=True)
            ]
            total = shared.bit_count() + _PRIOR_CONTEXTS
            if imagined:
                total += weight * len(imagined)
                for i, holders in enumerate(in_corpus):
                    counts[i] += weight * len(holders & imagined)
            savings = [n / (total - n) * size for n, size in zip(counts, lengths, strict=True)]
            best = savings.index(max(savings))
            shared &= bits.pop(best)
            if corpus:
                imagined &= in_corpus.pop(best)
            ordered.append(rest.pop(best))
            del lengths[best], ranks[best]
        alone = [n / (_PRIOR_CONTEXTS - n) * size for n, size in zip(ranks, lengths, strict=True)]
        return ordered + [rest[i] for i in sorted(range(len(rest)), key=lambda i: -alone[i])]

    def _forget(self, context: tuple[Hashable, ...], bit: int) -> None:
        for document in set(context):
            left = self._bits[document] & ~bit
            if left:
                self._bits[document] = left
            else:
                del self._bits[document]
