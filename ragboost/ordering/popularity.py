"""Order a request's tail by the documents that recent requests had together (`popularity`).

If a later request holds document i with probability p_i, the expected saving is greatest in the
order of p_i / (1 - p_i) times tokens. The recent contexts with the same prefix, the ranks of the
request itself and a prior from the corpus, whose weight fades, estimate p_i at each step.
"""

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple

from ragboost.ordering.prior import CorpusPrior

# Measured in docs/lab/ordering.md.
_PRIOR_CONTEXTS = 5.0
_BEST_RANK = 0.85
_RANK_DECAY = 0.95
_CORPUS_WEIGHT = 0.5  # of a context of the corpus, before any request
_CORPUS_HALF_LIFE = 200.0  # requests after which it weighs half as much
_COMPARED = 24  # documents at each step


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
        """Sort documents by expected saving behind a prefix; see the module.

        Takes time in proportion to their number: of more than `_COMPARED`, only so many are
        compared for each place, by what they saved when a sixteenth more contexts followed; all are
        compared whenever half of the contexts no longer follow.
        """
        contexts = self._following(prefix)
        near = self._candidates(documents, tokens)
        far: list[_Candidate] = []  # the best last
        savings: list[float] = []  # of `near`; empty: to be computed
        scored_with = compared_with = math.inf  # contexts
        ordered: list[Hashable] = []
        while near and (num_contexts := contexts.num):
            if 2 * num_contexts < compared_with and len(near) + len(far) > _COMPARED:
                compared_with, far = num_contexts, contexts.sorted(near + far)
                near, far, savings = far[: -_COMPARED - 1 : -1], far[:-_COMPARED], []
            if not savings:
                scored_with, savings = num_contexts, contexts.savings(near)
            best = savings.index(max(savings))
            del savings[best]
            candidate = near.pop(best)
            ordered.append(candidate.document)
            if contexts.narrow(candidate) and (not far or 16 * contexts.num < 15 * scored_with):
                savings = []
            if far:
                near.append(far.pop())
                if savings:
                    savings += contexts.savings(near[-1:])
        rest = _Contexts().sorted(sorted(near + far, key=lambda candidate: -candidate.prior))
        return ordered + [candidate.document for candidate in reversed(rest)]

    def _following(self, prefix: Sequence[Hashable]) -> "_Contexts":
        shared = (1 << len(self._contexts)) - 1
        for document in prefix:
            shared &= self._bits.get(document, 0)
        imagined = self._prior.behind(prefix) if self._prior else _NONE
        weight = _CORPUS_WEIGHT * _CORPUS_HALF_LIFE / (_CORPUS_HALF_LIFE + self._num_added)
        return _Contexts(shared, imagined, weight)

    def _candidates(
        self, documents: Sequence[Hashable], tokens: Mapping[Hashable, int]
    ) -> list["_Candidate"]:
        bits, corpus = self._bits, self._prior
        prior = _PRIOR_CONTEXTS * _BEST_RANK
        candidates = []
        for document in documents:
            imagined = corpus.holders(document) if corpus else _NONE
            candidates.append(
                _Candidate(document, tokens[document], prior, bits.get(document, 0), imagined)
            )
            prior *= _RANK_DECAY
        return candidates

    def _forget(self, context: tuple[Hashable, ...], bit: int) -> None:
        for document in set(context):
            left = self._bits[document] & ~bit
            if left:
                self._bits[document] = left
            else:
                del self._bits[document]


class _Candidate(NamedTuple):
    document: Hashable
    tokens: int
    prior: float  # contexts that its rank counts as
    holders: int  # recent contexts that hold it, as bits
    imagined: frozenset[int]  # contexts of the corpus that hold it


class _Contexts:
    """The contexts that hold all documents that are ordered so far."""

    def __init__(
        self, shared: int = 0, imagined: frozenset[int] = frozenset(), weight: float = 0.0
    ) -> None:
        self.shared = shared  # recent ones, as bits
        self.imagined = imagined  # of the corpus
        self.weight = weight  # of one of the corpus
        self.num = shared.bit_count() + len(imagined)

    def savings(self, candidates: Sequence[_Candidate]) -> list[float]:
        """Return what each document is expected to save if it is the next one."""
        shared, imagined, weight = self.shared, self.imagined, self.weight
        total = shared.bit_count() + _PRIOR_CONTEXTS
        counts = [(holders & shared).bit_count() + prior for _, _, prior, holders, _ in candidates]
        if imagined:
            total += weight * len(imagined)
            for i, candidate in enumerate(candidates):
                counts[i] += weight * len(candidate.imagined & imagined)
        return [
            n / (total - n) * candidate[1] for n, candidate in zip(counts, candidates, strict=True)
        ]

    def sorted(self, candidates: Sequence[_Candidate]) -> list[_Candidate]:
        """Sort by what they save, the greatest last; of equal ones the last first."""
        savings = self.savings(candidates)
        order = sorted(range(len(candidates)), key=lambda i: (savings[i], -i))
        return [candidates[i] for i in order]

    def narrow(self, candidate: _Candidate) -> bool:
        """Put a document behind the others; return False if all contexts hold it."""
        shared, imagined = self.shared & candidate.holders, self.imagined
        if imagined:
            imagined &= candidate.imagined
        if shared == self.shared and len(imagined) == len(self.imagined):
            return False
        self.shared, self.imagined = shared, imagined
        self.num = shared.bit_count() + len(imagined)
        return True


_NONE: frozenset[int] = frozenset()
