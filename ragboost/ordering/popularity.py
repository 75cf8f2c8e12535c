"""Order a request's tail by the documents that recent requests had together (`popularity`).

If a later request holds document i with probability p_i, the expected saving is greatest in the
order of p_i / (1 - p_i) times tokens. The recent contexts with the same prefix and the ranks of the
request itself estimate p_i at each step. Where no such context is left, documents keep their
relevance order, and so do all if another saves too little to be worth a hint.
"""

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import accumulate, repeat
from operator import itemgetter, mul

from ragboost.config import OrderingSettings
from ragboost.ordering.request import OrderPolicy

# Measured in docs/lab/ordering.md.
_PRIOR_CONTEXTS = 8.0
_BEST_RANK = 0.85
_RANK_DECAY = 0.95
_COMPARED = 24  # documents at each step
_MIN_RETURN = 5  # what an order must save recent contexts, in prices of its hint


class RecentContexts(OrderPolicy):
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
        prefix: Sequence[Hashable] = (),
    ) -> list[Hashable]:
        """Sort documents by expected saving behind a prefix; see the module.

        Keeps their relevance order unless the other saves the contexts enough to pay for its hint.
        Takes time in proportion to their number: of more than `_COMPARED`, only so many are
        compared for each place, by what they saved when a sixteenth more contexts followed; all are
        compared whenever half of the contexts no longer follow.
        """
        contexts = self._following(prefix)
        if not contexts.num:
            return list(documents)  # nothing is known
        by_relevance = self._candidates(documents, tokens)
        least = _MIN_RETURN * self.hint_tokens * (len(prefix) + len(documents))
        saved_by_relevance = contexts.saved_tokens(by_relevance)
        ordered, saved = self._by_savings(contexts, by_relevance)
        return ordered if saved - saved_by_relevance >= least else list(documents)

    def _by_savings(
        self, contexts: "_Contexts", candidates: list["_Candidate"]
    ) -> tuple[list[Hashable], float]:
        """Return the documents in the order of their savings, and what the contexts save then."""
        near = candidates
        far: list[_Candidate] = []  # the best last
        savings: list[float] = []  # of `near`; empty: to be computed
        scored_with = compared_with = math.inf  # contexts
        ordered: list[Hashable] = []
        saved = 0.0
        while near and (num_contexts := contexts.num):
            if 2 * num_contexts < compared_with and len(near) + len(far) > _COMPARED:
                compared_with, far = num_contexts, contexts.sorted(far + near)
                near, far, savings = far[: -_COMPARED - 1 : -1], far[:-_COMPARED], []
            if not savings:
                scored_with, savings = num_contexts, contexts.savings(near)
            best = savings.index(max(savings))
            candidate = near[best]
            ordered.append(candidate[0])
            is_old = contexts.narrow(candidate) and (not far or 8 * contexts.num < 7 * scored_with)
            saved += candidate[1] * contexts.num
            if far:
                near[best] = far.pop()
                if not is_old:
                    savings[best] = contexts.savings(near[best : best + 1])[0]
            else:
                del near[best], savings[best]
            if is_old:
                savings = []
        ordered += [candidate[0] for candidate in sorted(near + far, key=_RANK, reverse=True)]
        return ordered, saved

    def _following(self, prefix: Sequence[Hashable]) -> "_Contexts":
        shared = (1 << len(self._contexts)) - 1
        for document in prefix:
            shared &= self._bits.get(document, 0)
        return _Contexts(shared)

    def _candidates(
        self, documents: Sequence[Hashable], tokens: Mapping[Hashable, int]
    ) -> list["_Candidate"]:
        """Return the documents with what is known of them, in the order of their ranks."""
        holders = map(self._bits.get, documents, repeat(0))
        priors = accumulate(repeat(_RANK_DECAY), mul, initial=_PRIOR_CONTEXTS * _BEST_RANK)
        lengths = map(tokens.__getitem__, documents)
        return list(zip(documents, lengths, priors, holders, strict=False))

    def _forget(self, context: tuple[Hashable, ...], bit: int) -> None:
        for document in set(context):
            left = self._bits[document] ^ bit
            if left:
                self._bits[document] = left
            else:
                del self._bits[document]


# Document, its tokens, contexts that its rank counts as, and recent contexts that hold it as bits.
_Candidate = tuple[Hashable, int, float, int]
_RANK = itemgetter(2)


class _Contexts:
    """The recent contexts that hold all documents that are ordered so far."""

    def __init__(self, shared: int) -> None:
        self.shared = shared  # as bits
        self.num = shared.bit_count()

    def savings(self, candidates: Sequence[_Candidate]) -> list[float]:
        """Return what each document is expected to save if it is the next one."""
        shared, total = self.shared, self.num + _PRIOR_CONTEXTS
        return [
            (n := (holders & shared).bit_count() + prior) / (total - n) * tokens
            for _, tokens, prior, holders in candidates
        ]

    def sorted(self, candidates: Sequence[_Candidate]) -> list[_Candidate]:
        """Sort by what they save, the greatest last; of equal ones the last first."""
        savings = self.savings(candidates)
        order = sorted(range(len(candidates) - 1, -1, -1), key=savings.__getitem__)
        return [candidates[i] for i in order]

    def saved_tokens(self, order: Iterable[_Candidate]) -> float:
        """Return what these contexts would save if they came behind a prompt in this order."""
        shared, saved = self.shared, 0
        for _, tokens, _, holders in order:
            shared &= holders
            if not shared:
                break
            saved += tokens * shared.bit_count()
        return saved

    def narrow(self, candidate: _Candidate) -> bool:
        """Put a document behind the others; return False if all contexts hold it."""
        shared = self.shared & candidate[3]
        if shared == self.shared:
            return False
        self.shared, self.num = shared, shared.bit_count()
        return True


def make_order_policy(settings: OrderingSettings, *, is_hinted: bool = True) -> OrderPolicy:
    """Create the policy that `ordering.tail` names; `is_hinted`: order hints are sent."""
    policy = RecentContexts() if settings.tail == "popularity" else OrderPolicy()
    if not is_hinted:
        policy.hint_tokens = 0.0
    return policy
