"""Measure how much prefix sharing a sample of a workload offers, by sample size.

    python -m benchmarks.ordering.samples --data PATH --k 10 --cache-tokens 400000 --json

Replays document sequences through `ragboost.simulate`: small samples share little. No engine runs
and no time is measured. The ratios are plain / planned prompt tokens to compute: over all requests,
and for the median request. The defaults are those of `benchmarks.engines.end_to_end --corpus
padded`.
"""

import statistics
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.command import make_parser, report, show_rows
from benchmarks.datasets.retrieval import load_data
from benchmarks.datasets.workloads import Workload, planned_orders
from benchmarks.engines.replays import stretches
from benchmarks.ordering.online import replay as order_on_arrival
from ragboost.ordering import plan_batch
from ragboost.simulate import SimulatedCache

FIRST = (100, 200, 400, 600, 1200)
STRETCH_REQUESTS = 200

Orders = Sequence[Sequence[Hashable]]


class Lengths(NamedTuple):
    """Tokens of a document, of the prompt after its documents, and of the cache."""

    document: int
    question: int
    cache: int


class Replay(NamedTuple):
    """Prompt tokens computed per measured request, and the cached share of all."""

    computed: list[int]
    hit_rate: float


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of a retrieval workload")
    parser.add_argument("--retriever", default="dense", help="retrieval run of the folder")
    parser.add_argument("--k", type=int, default=10, help="documents per request")
    parser.add_argument("--document-tokens", type=int, default=420, help="tokens per document")
    parser.add_argument("--question-tokens", type=int, default=150, help="question and hints")
    parser.add_argument("--cache-tokens", type=int, default=400_000, help="prefix cache size")
    options = parser.parse_args()
    lengths = Lengths(options.document_tokens, options.question_tokens, options.cache_tokens)
    contexts = load_data(options.data, retriever=options.retriever, k=options.k).contexts
    sizes = [size for size in FIRST if size < len(contexts)]
    rows = [compare(f"first {size}", contexts[:size], lengths) for size in sizes]
    if len(contexts) > STRETCH_REQUESTS:
        rows.append(compare_stretches(contexts, lengths))
    rows.append(compare(f"all {len(contexts)}", contexts, lengths))
    report(rows, options, lambda rows: show_rows(rows, f"{options.data.name}, k = {options.k}"))


def compare(name: str, contexts: Orders, lengths: Lengths) -> dict[str, Any]:
    """Compare plain, planned and online for requests planned as one batch."""
    planned, _ = plan(contexts, lengths)
    return row(name, contexts, replay(planned, lengths), lengths)


def compare_stretches(contexts: Orders, lengths: Lengths) -> dict[str, Any]:
    """Compare them for stretches of the whole set's plan, as the end-to-end benchmark does."""
    planned, positions = plan(contexts, lengths)
    sent: list[Sequence[Hashable]] = []
    preparing = set()
    chosen: list[int] = []
    for start, end in stretches(len(planned), STRETCH_REQUESTS):
        preparing.add(len(sent))
        sent += planned[start - 1 : end]
        chosen += positions[start:end]
    sampled = [contexts[i] for i in sorted(chosen)]
    boosted = replay(sent, lengths, preparing=frozenset(preparing))
    return row(f"{len(sampled)} in stretches", sampled, boosted, lengths)


def row(name: str, contexts: Orders, boosted: Replay, lengths: Lengths) -> dict[str, Any]:
    """Return a row of the table."""
    plain, online = replay(contexts, lengths), replay(order_online(contexts, lengths), lengths)
    medians = [statistics.median(each.computed) for each in (plain, boosted)]
    return {
        "requests": name,
        "plain_hit_rate": round(plain.hit_rate, 3),
        "boosted_hit_rate": round(boosted.hit_rate, 3),
        "online_hit_rate": round(online.hit_rate, 3),
        "prefill_ratio": round(sum(plain.computed) / sum(boosted.computed), 2),
        "median_prefill_ratio": round(medians[0] / medians[1], 2),
    }


def plan(contexts: Orders, lengths: Lengths) -> tuple[list[list[Hashable]], tuple[int, ...]]:
    """Return the planned document orders in release order, and their positions in `contexts`."""
    workload = _workload(contexts, lengths)
    planned = plan_batch(workload.contexts, workload.tokens)
    return planned_orders(workload, planned), planned.release_order


def order_online(contexts: Orders, lengths: Lengths) -> Orders:
    """Return the document order of each request, boosted on arrival."""
    workload = _workload(contexts, lengths)
    return order_on_arrival(workload, lengths.cache, tail="relevance", window=1)[0]


def _workload(contexts: Orders, lengths: Lengths) -> Workload:
    tokens = {document: lengths.document for context in contexts for document in context}
    return Workload("", [list(context) for context in contexts], tokens)


def replay(orders: Orders, lengths: Lengths, *, preparing: frozenset[int] = frozenset()) -> Replay:
    """Replay orders through an empty prefix cache; positions in `preparing` are not measured."""
    cache = SimulatedCache(lambda _: lengths.document, capacity_tokens=lengths.cache)
    computed, prompt_tokens = [], 0
    for at, order in enumerate(orders):
        used = cache.request(order)
        if at not in preparing:
            prompt_tokens += used.prompt_tokens + lengths.question
            computed.append(used.prompt_tokens + lengths.question - used.cached_tokens)
    return Replay(computed, 1 - sum(computed) / prompt_tokens)


if __name__ == "__main__":
    main()
