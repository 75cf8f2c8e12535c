"""Order a request's tail by the documents that recent requests had together (`popularity`).

If a later request holds document i with probability p_i, the expected saving is greatest in the
order of p_i / (1 - p_i) times tokens. The recent contexts with the same prefix, the ranks of the
request itself and a prior from the corpus estimate p_i at each step. The prior's weight fades, the
faster the more often recent contexts predict requests better. Where no such context is left,
documents keep their relevance order, and so do all if another saves too little to be worth a hint:
what the prior promises counts as far as documents do come again.
"""

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import accumulate, repeat
from operator import itemgetter, mul

from ragboost.ordering.prior import CorpusPrior
from ragboost.ordering.request import OrderPolicy

# Measured in docs/lab/ordering.md.
_PRIOR_CONTEXTS = 8.0
_BEST_RANK = 0.85
_RANK_DECAY = 0.95
_CORPUS_WEIGHT = 0.5  # of a context of the corpus, before any request
_CORPUS_HALF_LIFE = 200.0  # requests after which it weighs half as much
_RECORD_DECAY = 0.98  # of how well the corpus has predicted, per request
_RECORD_START = 5.0  # documents that it is taken to have predicted, and requests
_RETURNING = 0.5  # share of these requests' documents that recent contexts had
_COMPARED = 24  # documents at each step
_MIN_GAIN = 120  # tokens per document of the request: twenty times its label in the order hint


class RecentContexts(OrderPolicy):
    """The documents of the last `window` contexts, as one bit set per document.

    Memory is bounded by the window: documents outside it are forgotten.

    Args:
        prior: which documents of the corpus are retrieved together; None: nothing is known.
    """

    def __init__(self, prior: CorpusPrior | None = None, *, window: int = 2048) -> None:
        super().__init__(prior)
        self.window = window
        self._num_added = 0
        self._by_recent = self._by_corpus = _RECORD_START  # predicted documents of requests
        self._num_requests, self._returning = _RECORD_START, _RETURNING * _RECORD_START
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
        if self._prior is not None:
            self._compare_sources(self._prior, context)
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

        Keeps their relevance order unless the contexts would save `_MIN_GAIN` more with the other.
        Takes time in proportion to their number: of more than `_COMPARED`, only so many are
        compared for each place, by what they saved when a sixteenth more contexts followed; all are
        compared whenever half of the contexts no longer follow.
        """
        contexts = self._following(prefix)
        if not contexts.num:
            return list(documents)  # nothing is known
        by_relevance = self._candidates(contexts, documents, tokens)
        least = _MIN_GAIN * (len(prefix) + len(documents))
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
            saved += candidate[1] * (contexts.num + (contexts.saving - 1) * len(contexts.imagined))
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
        imagined = self._prior.behind(prefix) if self._prior is not None else _NONE
        weight = _CORPUS_WEIGHT * _CORPUS_HALF_LIFE / (_CORPUS_HALF_LIFE + self._num_added)
        weight *= min(1.0, self._by_corpus / self._by_recent) ** 2
        return _Contexts(shared, imagined, weight, weight * self._returning / self._num_requests)

    def _compare_sources(self, corpus: CorpusPrior, context: Sequence[Hashable]) -> None:
        """Note how many of a request's documents recent contexts had at all, and how many each
        source has together with the first one."""
        if not context:
            return
        bits, kept, start = self._bits, _RECORD_DECAY, (1 - _RECORD_DECAY) * _RECORD_START
        self._num_requests = kept * self._num_requests + 1
        returning = sum([document in bits for document in context]) / len(context)
        self._returning = kept * self._returning + returning
        behind, rest = self._following(context[:1]), context[1:]
        if not behind.shared or not behind.imagined:
            return
        held = sum([(bits.get(d, 0) & behind.shared).bit_count() for d in rest])
        imagined = sum([len(corpus.holders(d) & behind.imagined) for d in rest])
        self._by_recent = kept * self._by_recent + start + held / behind.shared.bit_count()
        self._by_corpus = kept * self._by_corpus + start + imagined / len(behind.imagined)

    def _candidates(
        self,
        contexts: "_Contexts",
        documents: Sequence[Hashable],
        tokens: Mapping[Hashable, int],
    ) -> list["_Candidate"]:
        """Return the documents with what is known of them, in the order of their ranks."""
        holders = map(self._bits.get, documents, repeat(0))
        priors = accumulate(repeat(_RANK_DECAY), mul, initial=_PRIOR_CONTEXTS * _BEST_RANK)
        imagined: Iterable[frozenset[int]] = repeat(_NONE)
        if self._prior is not None and contexts.imagined:
            imagined = map(self._prior.holders, documents)
        lengths = map(tokens.__getitem__, documents)
        return list(zip(documents, lengths, priors, holders, imagined, strict=False))

    def _forget(self, context: tuple[Hashable, ...], bit: int) -> None:
        for document in set(context):
            left = self._bits[document] ^ bit
            if left:
                self._bits[document] = left
            else:
                del self._bits[document]


# Document, its tokens, contexts that its rank counts as, recent contexts that hold it as bits, and
# contexts of the corpus that hold it.
_Candidate = tuple[Hashable, int, float, int, frozenset[int]]
_RANK = itemgetter(2)


class _Contexts:
    """The contexts that hold all documents that are ordered so far."""

    def __init__(self, shared: int, imagined: frozenset[int], weight: float, saving: float) -> None:
        self.shared = shared  # recent ones, as bits
        self.imagined = imagined  # of the corpus
        self.weight = weight  # of one of the corpus
        self.saving = saving  # its weight where it is asked whether an order is worth a hint
        self.num = shared.bit_count() + len(imagined)

    def savings(self, candidates: Sequence[_Candidate]) -> list[float]:
        """Return what each document is expected to save if it is the next one."""
        shared, imagined, weight = self.shared, self.imagined, self.weight
        total = self.num + _PRIOR_CONTEXTS
        if not imagined:
            return [
                (n := (holders & shared).bit_count() + prior) / (total - n) * tokens
                for _, tokens, prior, holders, _ in candidates
            ]
        total += (weight - 1) * len(imagined)
        return [
            (n := (holders & shared).bit_count() + prior + weight * len(held & imagined))
            / (total - n)
            * tokens
            for _, tokens, prior, holders, held in candidates
        ]

    def sorted(self, candidates: Sequence[_Candidate]) -> list[_Candidate]:
        """Sort by what they save, the greatest last; of equal ones the last first."""
        savings = self.savings(candidates)
        order = sorted(range(len(candidates) - 1, -1, -1), key=savings.__getitem__)
        return [candidates[i] for i in order]

    def saved_tokens(self, order: Iterable[_Candidate]) -> float:
        """Return what these contexts would save if they came behind a prompt in this order."""
        shared, imagined, saved = self.shared, self.imagined, 0.0
        for _, tokens, _, holders, imagined_holders in order:
            shared, imagined = shared & holders, imagined & imagined_holders
            if not shared and not imagined:
                break
            saved += tokens * (shared.bit_count() + self.saving * len(imagined))
        return saved

    def narrow(self, candidate: _Candidate) -> bool:
        """Put a document behind the others; return False if all contexts hold it."""
        shared, imagined = self.shared & candidate[3], self.imagined
        if imagined:
            imagined &= candidate[4]
        if shared == self.shared and len(imagined) == len(self.imagined):
            return False
        self.shared, self.imagined = shared, imagined
        self.num = shared.bit_count() + len(imagined)
        return True


_NONE: frozenset[int] = frozenset()
