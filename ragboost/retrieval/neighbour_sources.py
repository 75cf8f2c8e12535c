"""Find the neighbours of each document of a corpus, from files or by BM25."""

import json
from dataclasses import asdict, dataclass
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ragboost.errors import ConfigError, RequestError
from ragboost.jsonl import read_objects
from ragboost.retrieval.bm25 import BM25Retriever
from ragboost.retrieval.corpus import Corpus
from ragboost.retrieval.neighbours import (
    Neighbours,
    by_cooccurrence,
    by_edges,
    by_retriever,
    by_vectors,
)
from ragboost.types import DocumentId


@dataclass(frozen=True, slots=True)
class Sources:
    """The source of neighbours: at most one; BM25 if there is none."""

    vectors: Path | None = None  # .npy file of (documents, dimension), in the order of the corpus
    edges: Path | None = None  # JSONL file of {"source", "target", "weight"} by document id
    trace: Path | None = None  # JSONL file of requests with `doc_ids`


def find_neighbours(corpus: Corpus, sources: Sources, *, top_n: int) -> Neighbours:
    """Return the neighbours of each document by the named source, or by BM25."""
    names = [name for name, path in asdict(sources).items() if path is not None]
    if len(names) > 1:
        raise ConfigError(f"neighbours come from one source, got --{' and --'.join(names)}")
    if top_n == 0:
        return [()] * len(corpus)
    if sources.vectors is not None:
        return by_vectors(_vectors(sources.vectors, len(corpus)), top_n=top_n)
    number = {document_key(document.id): place for place, document in enumerate(corpus)}
    if sources.edges is not None:
        edges = [_edge(number, row, where) for where, row in read_objects(sources.edges)]
        return by_edges(edges, num_documents=len(corpus), top_n=top_n)
    if sources.trace is not None:
        requests = [_request(number, row, where) for where, row in read_objects(sources.trace)]
        return by_cooccurrence(requests, num_documents=len(corpus), top_n=top_n)
    return by_retriever(BM25Retriever(corpus), corpus, top_n=top_n)


def _vectors(path: Path, num_documents: int) -> npt.NDArray[np.float32]:
    try:
        vectors = np.load(path, allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise ConfigError(f"--vectors {path} is not a .npy file of numbers: {error}") from None
    if vectors.shape[:1] != (num_documents,):
        raise ConfigError(
            f"--vectors {path} has shape {vectors.shape}, expected a row for each of "
            f"{num_documents} documents"
        )
    matrix: npt.NDArray[np.float32] = vectors.astype(np.float32)
    return matrix


def _edge(number: dict[str, int], row: dict[str, Any], where: str) -> tuple[int, int, float]:
    source, target = (_number(number, row.get(end), where) for end in ("source", "target"))
    weight = row.get("weight", 1.0)
    if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not isfinite(weight):
        raise RequestError(f"{where}: weight must be a finite number, got {weight!r}")
    return source, target, float(weight)


def _request(number: dict[str, int], row: dict[str, Any], where: str) -> list[int]:
    identities = row.get("doc_ids")
    if not isinstance(identities, list):
        raise RequestError(f"{where}: doc_ids must be a list of ids, got {identities!r}")
    return [_number(number, identity, where) for identity in identities]


def document_key(identity: DocumentId) -> str:
    """Return an id as text; `1` and `"1"` differ."""
    return json.dumps(identity)


def _number(number: dict[str, int], identity: DocumentId, where: str) -> int:
    place = number.get(document_key(identity))
    if place is None or identity is None:
        raise RequestError(f"{where}: no document of the corpus has the id {identity!r}")
    return place
