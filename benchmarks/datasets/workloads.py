"""Workloads of requests, which are lists of documents in relevance order, and generated ones.

Does not know how orders are found, nor engines.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ragboost.batch.simulate import simulate
from ragboost.errors import RequestError
from ragboost.ordering import BatchPlan

CAPACITIES: Mapping[str, int | None] = {
    "50000": 50_000,
    "100000": 100_000,
    "400000": 400_000,
    "unbounded": None,
}
NUM_DOCUMENTS = 5_000
DOCUMENT_TOKENS = (200, 1_200)

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Workload:
    """Requests with the lengths of their documents; generated ones have no questions."""

    name: str
    contexts: list[list[Hashable]]  # of each request, most relevant first
    tokens: dict[Hashable, int]  # of each document
    questions: tuple[str, ...] = ()
    conversations: tuple[tuple[int, ...], ...] = ()  # positions of their requests, turn by turn


def planned_orders(workload: Workload, plan: BatchPlan) -> list[list[Hashable]]:
    """Return the documents of each request as planned, in the order of release."""
    contexts = workload.contexts
    return [[contexts[i][at] for at in plan.permutations[i]] for i in plan.release_order]


def hit_rates(
    orders: Sequence[Sequence[Hashable]], tokens: Mapping[Hashable, int]
) -> dict[str, float]:
    """Return the token hit rate of an LRU prefix cache at each of CAPACITIES."""
    return {
        name: round(simulate(orders, tokens, capacity_tokens=capacity).hit_rate, 4)
        for name, capacity in CAPACITIES.items()
    }


def generate(
    name: str, num_requests: int, *, k: int = 15, seed: int = 1, documents: int = NUM_DOCUMENTS
) -> Workload:
    """Draw a workload: `k` distinct documents per request, 200 to 1,200 tokens per document.

    - `zipf`: documents by a Zipf law (exponent 1.0), in random order.
    - `topics`: 100 topics of equal size; topic, and document within it, by Zipf laws (0.8); 85 % of
      a list from its topic, the rest uniform over all documents; in random order.
    - `neardup`: 300 base lists (Zipf 0.6 over documents); a request is one of them (Zipf 0.8) with
      three documents replaced and ranks perturbed (sigma 2).

    Raises:
        RequestError: unknown name, or `k` out of range for `documents`.
    """
    if name not in GENERATORS:
        raise RequestError(f"workload must be one of {', '.join(GENERATORS)}, got {name!r}")
    if not 3 <= k <= documents // 100:
        raise RequestError(f"k must be from 3 to {documents // 100}, got {k}", param="k")
    rng = np.random.default_rng(seed)
    names = rng.permutation(documents)  # decouples popularity from ids
    low, high = DOCUMENT_TOKENS
    lengths = rng.integers(low, high, size=documents, endpoint=True).tolist()
    ranks = GENERATORS[name](rng, documents, num_requests, k)
    return Workload(name, contexts=names[ranks].tolist(), tokens=dict(enumerate(lengths)))


def _zipf(rng: np.random.Generator, documents: int, n: int, k: int) -> Rows:
    return rng.permuted(_distinct(_by_zipf(rng, documents, 1.0), k, head=_no_rows(n)), axis=1)


def _topics(rng: np.random.Generator, documents: int, n: int, k: int) -> Rows:
    size = documents // 100
    topic = _by_zipf(rng, 100, 0.8)((n, 1))
    inside = topic * size + _distinct(_by_zipf(rng, size, 0.8), k, head=_no_rows(n))
    num_inside = rng.binomial(k, 0.85, size=(n, 1))
    inside[np.arange(k) >= num_inside] = -1
    rows = _distinct(lambda shape: rng.integers(0, documents, size=shape), k, head=inside)
    return rng.permuted(rows, axis=1)


def _neardup(rng: np.random.Generator, documents: int, n: int, k: int) -> Rows:
    draw = _by_zipf(rng, documents, 0.6)
    bases = rng.permuted(_distinct(draw, k, head=_no_rows(300)), axis=1)
    rows = bases[_by_zipf(rng, 300, 0.8)((n,))]
    fresh = _distinct(draw, k + 3, head=rows)[:, k:]
    replaced = rng.permuted(np.broadcast_to(np.arange(k), (n, k)), axis=1)[:, :3]
    np.put_along_axis(rows, replaced, fresh, axis=1)
    ranks = np.argsort(np.arange(k) + rng.normal(0.0, 2.0, size=(n, k)), axis=1)
    return np.take_along_axis(rows, ranks, axis=1)


GENERATORS: Mapping[str, Callable[[np.random.Generator, int, int, int], Rows]] = {
    "zipf": _zipf,
    "topics": _topics,
    "neardup": _neardup,
}


def _by_zipf(
    rng: np.random.Generator, n: int, exponent: float
) -> Callable[[tuple[int, ...]], Rows]:
    """Return a function that draws ranks 0..n-1 in a given shape."""
    cumulative = np.cumsum(np.arange(1, n + 1) ** -exponent)
    cumulative /= cumulative[-1]
    return lambda shape: np.searchsorted(cumulative, rng.random(shape), side="right")


def _no_rows(n: int) -> Rows:
    return np.empty((n, 0), dtype=np.int64)


def _distinct(draw: Callable[[tuple[int, ...]], Rows], k: int, *, head: Rows) -> Rows:
    """Extend each row of `head` (-1: empty) to `k` distinct values: those of `head`, then draws.

    Repeated draws until `k` are distinct equal draws without replacement.
    """
    n = len(head)
    rows = head
    while True:
        rows = np.hstack([rows, draw((n, 2 * k))])
        by_value = np.argsort(rows, axis=1, kind="stable")
        values = np.take_along_axis(rows, by_value, axis=1)
        is_first = np.ones(rows.shape, dtype=bool)
        is_first[:, 1:] = values[:, 1:] != values[:, :-1]
        is_new = np.empty_like(is_first)
        np.put_along_axis(is_new, by_value, is_first & (values >= 0), axis=1)
        count = np.cumsum(is_new, axis=1)
        if n == 0 or count[:, -1].min() >= k:
            return rows[is_new & (count <= k)].reshape(n, k)
