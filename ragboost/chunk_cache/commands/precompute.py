"""`ragboost precompute`: find the neighbours of each document of a corpus, and compute its KV."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ragboost.chunk_cache.commands.loading import check_paths, load
from ragboost.chunk_cache.kv.keys import Identity
from ragboost.chunk_cache.kv.store import ChunkStore
from ragboost.chunk_cache.kv.tiers.disk import DiskTier
from ragboost.chunk_cache.precompute.catalog import ChunkCatalog
from ragboost.chunk_cache.precompute.corpus import CorpusChunk, PrecomputeOutcome, precompute
from ragboost.chunk_cache.precompute.neighbours import (
    Neighbours,
    by_cooccurrence,
    by_edges,
    by_retriever,
    by_vectors,
)
from ragboost.chunk_cache.reuse import ChunkReuse
from ragboost.errors import ChunkCacheError, ConfigError, RequestError
from ragboost.jsonl import read_objects
from ragboost.retrieval.bm25 import BM25Retriever
from ragboost.retrieval.corpus import Corpus
from ragboost.types import Document, DocumentId

TEMPLATE = "{title}\n{text}\n\n"
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Sources:
    """The source of neighbours: at most one; BM25 if there is none.

    Attributes:
        vectors: .npy file of (documents, dimension), in the order of the corpus.
        edges: JSONL file of {"source", "target", "weight"} by document id.
        trace: JSONL file of requests with `doc_ids`.
    """

    vectors: Path | None = None
    edges: Path | None = None
    trace: Path | None = None


def run(
    model: Path,
    corpus: Path,
    out: Path,
    *,
    top_n: int,
    sources: Sources,
    system: Path | None,
    template: str,
    capacity_bytes: int,
    working_bytes: int,
    device: str,
    as_json: bool,
    on_progress: Progress,
) -> str:
    """Prepare a corpus, and return sentences or JSON.

    Raises:
        ConfigError: a path does not exist, or there are several sources of neighbours.
        ChunkCacheError: the capacity is too small, or the model has no tokenizer.
        RequestError: an invalid line of a file.
        UnsupportedModelError: KV of the model cannot be reused.
    """
    check_paths(model=model, corpus=corpus, system=system, **asdict(sources))
    documents = Corpus.read(corpus)
    on_progress("neighbours", 0, 1)
    neighbours = find_neighbours(documents, sources, top_n=top_n)
    on_progress("neighbours", 1, 1)
    adapter, tokenizer, _ = load(model, device=device)
    if tokenizer is None:
        raise ChunkCacheError(f"{model} has no tokenizer, which a corpus of texts needs")
    chunks = [
        CorpusChunk(_identity(document), _ids(tokenizer, template, document))
        for document in documents
    ]
    identity = Identity(
        model=adapter.fingerprint(), dtype=str(adapter.dtype).removeprefix("torch.")
    )
    reuse = ChunkReuse(adapter, ChunkStore(capacity_bytes=working_bytes), identity=identity)
    catalog = ChunkCatalog(out)
    outcome = precompute(
        reuse,
        DiskTier(out, capacity_bytes=capacity_bytes),
        catalog,
        system=tokenizer.encode(system.read_text(encoding="utf-8")) if system else [],
        chunks=chunks,
        neighbours=neighbours,
        max_tokens=int(adapter.config.max_position_embeddings),
        on_progress=lambda done: on_progress("chunks", done, len(chunks)),
    )
    figures = _figures(outcome, catalog)
    return json.dumps(figures) if as_json else _sentences(figures)


def find_neighbours(corpus: Corpus, sources: Sources, *, top_n: int) -> Neighbours:
    """Return the neighbours of each document by the given source, or by BM25.

    Raises:
        ConfigError: several sources, or vectors that do not match the corpus.
        RequestError: a line names an unknown document.
    """
    given = [name for name, path in asdict(sources).items() if path is not None]
    if len(given) > 1:
        raise ConfigError(f"neighbours come from one source, got --{' and --'.join(given)}")
    if top_n == 0:
        return [()] * len(corpus)
    if sources.vectors is not None:
        return by_vectors(_vectors(sources.vectors, len(corpus)), top_n=top_n)
    number = {_key(document.id): place for place, document in enumerate(corpus)}
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


def _key(identity: DocumentId) -> str:
    return json.dumps(identity)


def _number(number: dict[str, int], identity: DocumentId, where: str) -> int:
    place = number.get(_key(identity))
    if place is None or identity is None:
        raise RequestError(f"{where}: no document of the corpus has the id {identity!r}")
    return place


def _identity(document: Document) -> str:
    """Return the id of a document, so that a changed text is noticed; its key if it has none."""
    return f"key {document.key}" if document.id is None else _key(document.id)


def _ids(tokenizer: Any, template: str, document: Document) -> tuple[int, ...]:
    title = document.title or ""
    text = template.replace("{title}\n", f"{title}\n" if title else "")
    text = text.replace("{title}", title).replace("{text}", document.text)
    return tuple(tokenizer.encode(text, add_special_tokens=False))


def _figures(outcome: PrecomputeOutcome, catalog: ChunkCatalog) -> dict[str, Any]:
    seconds = outcome.seconds
    return asdict(outcome) | {
        "chunks_per_s": outcome.num_computed / seconds if seconds else 0.0,
        "tokens_per_s": outcome.num_tokens / seconds if seconds else 0.0,
        "size_bytes": catalog.size_bytes,
        "num_documents": len(catalog.documents),
    }


def _sentences(figures: dict[str, Any]) -> str:
    text = (
        f"{figures['num_computed']:,} chunks computed ({figures['num_stale']:,} of them had "
        f"changed), {figures['num_current']:,} were up to date, {figures['num_removed']:,} "
        f"removed\n"
        f"{figures['tokens_per_s']:,.0f} tokens/s, {figures['chunks_per_s']:.2f} chunks/s, "
        f"{figures['seconds']:.1f} s\n"
        f"{figures['num_documents']:,} documents, {figures['size_bytes'] / 1e6:,.1f} MB of KV"
    )
    if figures["num_lost"]:
        text += (
            f"\nwarning: the KV of {figures['num_lost']:,} documents was evicted; increase "
            "--capacity-gb"
        )
    return text
