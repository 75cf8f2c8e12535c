"""Prepare a corpus incrementally, each chunk after its neighbours (FusionRAG section 3.1)."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ragboost.chunk_cache.core.reuse import ChunkReuse
from ragboost.chunk_cache.precompute.catalog import ChunkCatalog, PreparedChunk, recipe_of
from ragboost.chunk_cache.precompute.prime import prime
from ragboost.chunk_cache.precompute.prompts import fitting
from ragboost.chunk_cache.store.disk import DiskTier
from ragboost.errors import ChunkCacheError


@dataclass(frozen=True, slots=True)
class CorpusChunk:
    document: str  # identity in the corpus, independent of its text
    tokens: tuple[int, ...]  # token ids as in the prompts


@dataclass(slots=True)
class PrecomputeOutcome:
    num_computed: int = 0  # chunks computed by this run
    num_stale: int = 0  # those of them whose text or neighbours had changed
    num_current: int = 0  # chunks that were up to date
    num_removed: int = 0  # documents that were removed from the corpus and so from the disk
    num_tokens: int = 0  # tokens of the computed chunks
    seconds: float = 0.0  # duration of computing and writing
    num_lost: int = 0  # chunks whose KV was evicted since the capacity is too small for all


def precompute(
    reuse: ChunkReuse,
    disk: DiskTier,
    catalog: ChunkCatalog,
    *,
    system: Sequence[int],
    chunks: Sequence[CorpusChunk],
    neighbours: Sequence[Sequence[int]],
    max_tokens: int,
    on_progress: Callable[[int], None] | None = None,
) -> PrecomputeOutcome:
    """Bring the KV of a corpus up to date; may be interrupted and run again. `neighbours` are
    indices for each chunk, the closest last; the least close are left out beyond `max_tokens`, the
    model's context. Raises `ChunkCacheError` if a chunk does not fit on the disk."""
    if len(neighbours) != len(chunks):
        raise ChunkCacheError(
            f"{len(chunks)} chunks need as many neighbours, got {len(neighbours)}"
        )
    outcome, begin = PrecomputeOutcome(), time.perf_counter()
    present = {chunk.document for chunk in chunks}
    for document in catalog.documents:
        if document not in present:
            _drop(disk, catalog, document)
            outcome.num_removed += 1
    _keep_system(reuse, disk, system)
    lengths, room = [len(chunk.tokens) for chunk in chunks], max_tokens - len(system) - 1
    for number, chunk in enumerate(chunks):
        others = [other for other in neighbours[number] if chunks[other].tokens != chunk.tokens]
        near = fitting(others, lengths, room=room - lengths[number])
        if chunk.tokens:
            before = [chunks[other].tokens for other in near]
            _update(reuse, disk, catalog, system, chunk, before, outcome)
        if on_progress is not None:
            on_progress(number + 1)
    outcome.seconds = time.perf_counter() - begin
    entries = [catalog.entry(chunk.document) for chunk in chunks if chunk.tokens]
    outcome.num_lost = sum(entry is not None and entry.key not in disk for entry in entries)
    return outcome


def _update(
    reuse: ChunkReuse,
    disk: DiskTier,
    catalog: ChunkCatalog,
    system: Sequence[int],
    chunk: CorpusChunk,
    neighbours: Sequence[tuple[int, ...]],
    outcome: PrecomputeOutcome,
) -> None:
    recipe = recipe_of(neighbours)
    key = reuse.library.key(chunk.tokens, recipe=recipe)
    old = catalog.entry(chunk.document)
    is_new = old is None or old.key != key
    if key in disk and not is_new:
        outcome.num_current += 1
        return
    if key in disk:  # shared with an equal document, or written by an interrupted run
        size, outcome.num_current = _size(catalog, key), outcome.num_current + 1
    else:
        kv = prime(reuse, system, chunk.tokens, neighbours=neighbours)
        size = kv.size_bytes
        if not disk.save(key, kv):
            raise ChunkCacheError(
                f"no room for the {size} bytes of document {chunk.document}; increase the capacity "
                "of the directory, or prepare fewer documents"
            )
        outcome.num_computed += 1
        outcome.num_stale += old is not None and is_new
        outcome.num_tokens += len(chunk.tokens)
    plain = reuse.library.key(chunk.tokens)
    catalog.record(PreparedChunk(chunk.document, plain, recipe, key, len(chunk.tokens), size))
    if old is not None and is_new and not catalog.keeps(old.key):
        disk.remove(old.key)


def _keep_system(reuse: ChunkReuse, disk: DiskTier, system: Sequence[int]) -> None:
    if system:
        key = reuse.library.key(system)
        if key not in disk:
            disk.save(key, reuse.plain((), system))


def _drop(disk: DiskTier, catalog: ChunkCatalog, document: str) -> None:
    entry = catalog.entry(document)
    catalog.forget(document)
    if entry is not None and not catalog.keeps(entry.key):
        disk.remove(entry.key)


def _size(catalog: ChunkCatalog, key: str) -> int:
    entries = (catalog.entry(document) for document in catalog.documents)
    return next((e.size_bytes for e in entries if e is not None and e.key == key), 0)
