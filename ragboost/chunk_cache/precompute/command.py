"""`ragboost precompute`: compute the KV of a corpus, each document behind its neighbours."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ragboost.chunk_cache.core.loading import load
from ragboost.chunk_cache.core.reuse import ChunkReuse
from ragboost.chunk_cache.precompute.catalog import ChunkCatalog
from ragboost.chunk_cache.precompute.corpus import CorpusChunk, PrecomputeOutcome, precompute
from ragboost.chunk_cache.precompute.prompts import fill_template
from ragboost.chunk_cache.store.disk import DiskTier
from ragboost.chunk_cache.store.tiered import TieredStore
from ragboost.errors import ChunkCacheError
from ragboost.types import Document

TEMPLATE = "{title}\n{text}\n\n"
Progress = Callable[[str, int, int], None]


def run(
    model: Path,
    documents: Sequence[Document],
    *,
    out: Path,
    neighbours: Sequence[Sequence[int]],
    system: Path | None,
    template: str | None,
    capacity_bytes: int,
    working_bytes: int,
    device: str,
    as_json: bool,
    on_progress: Progress,
) -> str:
    """Prepare a corpus, with `neighbours` as indices, the closest last; return text or JSON."""
    adapter, tokenizer, _ = load(model, device=device)
    if tokenizer is None:
        raise ChunkCacheError(f"{model} has no tokenizer, which a corpus of texts needs")
    texts = [fill_template(template or TEMPLATE, document) for document in documents]
    chunks = [
        CorpusChunk(_identity(document), tuple(tokenizer.encode(text, add_special_tokens=False)))
        for document, text in zip(documents, texts, strict=True)
    ]
    reuse = ChunkReuse(adapter, TieredStore(host_bytes=working_bytes))
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


def _identity(document: Document) -> str:
    """Return a document's id, so that a changed text is noticed; its key if it has none."""
    return f"key {document.key}" if document.id is None else json.dumps(document.id)


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
