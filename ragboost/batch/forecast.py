"""Forecast the savings on a trace: hit rate against the size of the prefix cache.

Replays three document orders through the exact cache simulator: that of the trace, ordered request
by request as in the proxy, and planned as a batch.
"""

from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ragboost.batch.files import open_input
from ragboost.batch.lines import LineParser
from ragboost.batch.plan import plan_file, predict
from ragboost.batch.requests import BatchRequests, Progress, read_requests
from ragboost.batch.simulate import simulate
from ragboost.config import Settings
from ragboost.errors import RequestError
from ragboost.index import ContextIndex
from ragboost.integrations.retrieval.corpus import Corpus
from ragboost.ordering import make_order_policy, order_documents

_NUM_SIZES = 6


class ForecastPoint(NamedTuple):
    cache_tokens: int | None  # its capacity in document tokens; None if unbounded
    plain: float  # hit rate of the unchanged trace
    online: float  # hit rate with each request ordered on arrival
    planned: float  # hit rate with the whole trace planned as a batch


class Forecast(NamedTuple):
    requests: int  # requests of the trace
    rejected: int  # malformed lines, which were skipped
    documents: int  # documents of all requests
    document_tokens: int
    is_counted: bool  # these were counted with `tokens.tokenizer`, not estimated
    points: tuple[ForecastPoint, ...]  # by size of the cache, smallest first

    def as_json(self) -> dict[str, Any]:
        return {**self._asdict(), "points": [point._asdict() for point in self.points]}


def forecast(
    source: Path,
    *,
    settings: Settings | None = None,
    corpus: Corpus | None = None,
    cache_tokens: Sequence[int] = (),
    on_progress: Progress | None = None,
) -> Forecast:
    """Replay a trace, in the line formats of `run_batch` or a log of `proxy.record`, at several
    sizes of the prefix cache; by default, from the largest request to the whole trace, and
    unbounded."""
    if any(size < 1 for size in cache_tokens):
        raise RequestError(f"cache_tokens must be at least 1, got {min(cache_tokens)}")
    settings, move = settings or Settings(), on_progress or (lambda *_: None)
    parser = LineParser(settings, corpus=corpus, reads_records=True)
    with open_input(source) as file:
        requests = read_requests(file, parser, settings=settings, on_progress=move, rejects=None)
    counts = [sum(requests.tokens[i] for i in documents) for documents in requests.documents]
    if not any(counts):
        malformed = (
            f"; {requests.rejected:,} malformed, {requests.problem}" if requests.rejected else ""
        )
        raise RequestError(f"{source}: no request with documents{malformed}")
    sizes: list[int | None] = [*cache_tokens]
    sizes = sizes or [*_sizes(max(counts), sum(requests.tokens)), None]
    move("planning", 0, 1)
    plan = plan_file(requests, settings.ordering)
    move("planning", 1, 1)
    points = []
    for done, size in enumerate(sizes):
        move("replaying", done, len(sizes))
        plain = predict(requests, None, cache_tokens=size)
        planned = predict(requests, plan, cache_tokens=size)
        online = _online(requests, settings, size)
        points.append(ForecastPoint(size, plain.hit_rate, online, planned.hit_rate))
    move("replaying", len(sizes), len(sizes))
    return Forecast(
        requests=len(requests.documents),
        rejected=requests.rejected,
        documents=sum(map(len, requests.documents)),
        document_tokens=sum(counts),
        is_counted=settings.tokens.tokenizer is not None,
        points=tuple(points),
    )


def _sizes(smallest: int, largest: int) -> list[int]:
    largest = max(largest, 2 * smallest)
    ratio = (largest / smallest) ** (1 / (_NUM_SIZES - 1))
    return sorted({round(smallest * ratio**i) for i in range(_NUM_SIZES)})


def _online(requests: BatchRequests, settings: Settings, size: int | None) -> float:
    ordering = settings.ordering
    policy = make_order_policy(ordering, is_hinted=settings.hints.order)
    index = ContextIndex(capacity_tokens=size)
    orders: list[Sequence[Hashable]] = []
    for position, head in enumerate(requests.heads):
        sent = requests.sent(position) if head >= 0 else requests.documents[position]
        elements = [(head, document) for document in sent]
        if head >= 0 and len(set(elements)) == len(elements):
            tokens = [requests.tokens[document] for document in sent]
            order = order_documents(index, elements, tokens, settings=ordering, policy=policy)
            elements = [elements[i] for i in order.permutation]
            index.insert(elements, order.tokens)
            policy.add(elements)
        orders.append(elements)
    counted = simulate(orders, lambda element: requests.tokens[element[1]], capacity_tokens=size)
    return counted.hit_rate
