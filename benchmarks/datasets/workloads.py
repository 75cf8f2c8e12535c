"""Workloads for benchmarks: generated requests, and retrieval runs read from disk.

A request is a list of documents in relevance order. Does not know ordering or engines.
"""

import gzip
import json
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ragboost.errors import RequestError
from ragboost.simulate import simulate

CAPACITIES: Mapping[str, int | None] = {
    "50000": 50_000,
    "100000": 100_000,
    "400000": 400_000,
    "unbounded": None,
}
NUM_DOCUMENTS = 5_000
DOCUMENT_TOKENS = (200, 1_200)

# Assumed document length for data sets whose corpus holds only extracts.
_WHOLE_DOCUMENT_TOKENS = {"multihoprag_evidence": 1_000}
_CHARACTERS_PER_TOKEN = 4

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Workload:
    """Requests with the lengths of their documents.

    Attributes:
        name: label in results.
        contexts: documents of each request, most relevant first.
        tokens: token count of each document.
        questions: question of each request; empty for generated workloads.
        conversations: positions of the requests of each conversation, in turn order; empty for
            independent requests.
    """

    name: str
    contexts: list[list[Hashable]]
    tokens: dict[Hashable, int]
    questions: tuple[str, ...] = ()
    conversations: tuple[tuple[int, ...], ...] = ()


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


def load_data(
    path: Path | str, *, workload: str | None = None, retriever: str = "dense", k: int = 15
) -> Workload:
    """Read requests from a folder.

    The folder holds either `document_tokens.json.gz` and `{workload}_*.jsonl`, or
    `retrieved_{retriever}.jsonl`, `queries.jsonl` and `corpus.jsonl` (document lengths: one token
    per four characters; 1,000 for MultiHop-RAG, whose corpus holds extracts only). All may be
    gzipped. Lists are cut to `k`.

    Raises:
        RequestError: a file is missing; the message lists the files present.
    """
    folder = Path(path)
    lengths = folder / "document_tokens.json.gz"
    if lengths.is_file():
        if workload is None:
            raise RequestError(
                f"{folder} holds several workloads: choose one of zipf, topics, neardup"
            )
        rows = list(_read(_only(folder, f"{workload}_*.jsonl*")))
        with gzip.open(lengths, "rt", encoding="utf-8") as file:
            tokens = json.load(file)
        return Workload(workload, contexts=[row["doc_ids"][:k] for row in rows], tokens=tokens)
    rows = list(_read(_only(folder, f"retrieved_{retriever}.jsonl*")))
    contexts = [row["doc_ids"][:k] for row in rows]
    queries = {row["id"]: row for row in _read(_only(folder, "queries.jsonl*"))}
    asked = [queries.get(row["id"], {}) for row in rows]
    return Workload(
        f"{folder.name}/{retriever}",
        contexts=contexts,
        tokens=_document_tokens(folder, contexts),
        questions=tuple(query.get("question", "") for query in asked),
        conversations=_conversations(asked),
    )


def read_rows(folder: Path, pattern: str) -> Iterator[dict[str, Any]]:
    """Read the rows of the folder's first file that matches the pattern, plain or gzipped.

    Raises:
        RequestError: no file matches.
    """
    return _read(_only(folder, pattern))


def _document_tokens(folder: Path, contexts: Iterable[Iterable[Hashable]]) -> dict[Hashable, int]:
    used = {document for context in contexts for document in context}
    if folder.name in _WHOLE_DOCUMENT_TOKENS:
        return dict.fromkeys(used, _WHOLE_DOCUMENT_TOKENS[folder.name])
    tokens: dict[Hashable, int] = {
        row["id"]: max(1, len(row["text"]) // _CHARACTERS_PER_TOKEN)
        for row in _read(_only(folder, "corpus.jsonl*"))
        if row["id"] in used
    }
    if missing := used - tokens.keys():
        raise RequestError(
            f"{folder}: the corpus lacks {len(missing)} documents, such as {missing.pop()!r}"
        )
    return tokens


def _conversations(asked: Sequence[Mapping[str, Any]]) -> tuple[tuple[int, ...], ...]:
    turns: dict[str, list[int]] = {}
    for i, query in enumerate(asked):
        if "conversation_id" in query:
            turns.setdefault(query["conversation_id"], []).append(i)
    return tuple(
        tuple(sorted(positions, key=lambda i: asked[i]["turn"])) for positions in turns.values()
    )


def _only(folder: Path, pattern: str) -> Path:
    found = sorted(folder.glob(pattern))
    if not found:
        there = ", ".join(sorted(file.name for file in folder.glob("*.jsonl*"))) or "no .jsonl file"
        raise RequestError(f"{folder} has no {pattern}; it has {there}")
    return found[0]


def _read(path: Path) -> Iterator[dict[str, Any]]:
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)
