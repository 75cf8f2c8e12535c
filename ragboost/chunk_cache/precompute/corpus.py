"""Prepare a whole corpus: each chunk after its neighbours, what is done already left as it is, what
has changed made anew (FusionRAG section 3.1).

Knows chunks, neighbours and where KV is kept. Does not know texts, files or command lines.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ragboost.chunk_cache.kv.store import ChunkKV
from ragboost.chunk_cache.precompute.catalog import ChunkCatalog, PreparedChunk, recipe_of
from ragboost.chunk_cache.precompute.prime import prime
from ragboost.chunk_cache.reuse import ChunkReuse
from ragboost.errors import ChunkCacheError


class Kept(Protocol):
    """Where the KV of a corpus is kept, such as `tiers.disk.DiskTier`."""

    def __contains__(self, key: str) -> bool:
        """Whether KV is there."""
        ...

    def save(self, key: str, chunk: ChunkKV) -> bool:
        """Keep KV for good; False: there is no room."""
        ...

    def remove(self, key: str) -> None:
        """Drop KV; an absent key does nothing."""
        ...


@dataclass(frozen=True, slots=True)
class CorpusChunk:
    """A document as the model reads it.

    Attributes:
        document: its identity, which stays when its text changes.
        tokens: ids, as they will stand in prompts.
    """

    document: str
    tokens: tuple[int, ...]


@dataclass(slots=True)
class PrecomputeOutcome:
    """What a run did.

    Attributes:
        num_computed: chunks computed now.
        num_stale: of these, chunks that had other text or other neighbours before.
        num_current: chunks that were done already.
        num_removed: documents whose KV was dropped, as they are not in the corpus any more.
        num_tokens: of the chunks computed now.
        seconds: computing and writing.
        num_lost: chunks of the catalogue whose KV did not stay, as there is no room for all.
    """

    num_computed: int = 0
    num_stale: int = 0
    num_current: int = 0
    num_removed: int = 0
    num_tokens: int = 0
    seconds: float = 0.0
    num_lost: int = 0


def precompute(
    reuse: ChunkReuse,
    kept: Kept,
    catalog: ChunkCatalog,
    *,
    system: Sequence[int],
    chunks: Sequence[CorpusChunk],
    neighbours: Sequence[Sequence[int]],
    max_tokens: int,
    on_progress: Callable[[int], None] | None = None,
) -> PrecomputeOutcome:
    """Bring the KV of a corpus up to date. May be stopped at any time and run again.

    Args:
        reuse: the model, with a store of its own for plain KV while it works.
        kept: where the KV goes.
        catalog: what has been done.
        system: ids of the system prompt that the chunks will stand after.
        chunks: the corpus; documents of equal tokens share KV.
        neighbours: of each chunk, as numbers in the corpus, the closest last.
        max_tokens: context of the model; neighbours that do not fit are left out, the least close
            first.
        on_progress: called with the number of chunks done.

    Raises:
        ChunkCacheError: not a list of neighbours for each chunk, or there is no room for a chunk.
    """
    if len(neighbours) != len(chunks):
        raise ChunkCacheError(
            f"{len(chunks)} chunks need as many neighbours, got {len(neighbours)}"
        )
    outcome, begin = PrecomputeOutcome(), time.perf_counter()
    present = {chunk.document for chunk in chunks}
    for document in catalog.documents:
        if document not in present:
            _drop(kept, catalog, document)
            outcome.num_removed += 1
    _keep_system(reuse, kept, system)
    for number, chunk in enumerate(chunks):
        near = _fitting(chunks, neighbours[number], room=max_tokens - len(system) - 1, own=chunk)
        if chunk.tokens:
            _bring_up_to_date(reuse, kept, catalog, system, chunk, near, outcome)
        if on_progress is not None:
            on_progress(number + 1)
    outcome.seconds = time.perf_counter() - begin
    entries = [catalog.entry(chunk.document) for chunk in chunks if chunk.tokens]
    outcome.num_lost = sum(entry is not None and entry.key not in kept for entry in entries)
    return outcome


def _bring_up_to_date(
    reuse: ChunkReuse,
    kept: Kept,
    catalog: ChunkCatalog,
    system: Sequence[int],
    chunk: CorpusChunk,
    neighbours: Sequence[tuple[int, ...]],
    outcome: PrecomputeOutcome,
) -> None:
    recipe = recipe_of(neighbours)
    key = reuse.chunks.key(system, chunk.tokens, recipe=recipe)
    old = catalog.entry(chunk.document)
    is_new = old is None or old.key != key
    if key in kept and not is_new:
        outcome.num_current += 1
        return
    if key in kept:  # the same text as another document, or recorded by a run that was stopped
        size, outcome.num_current = _size(catalog, key), outcome.num_current + 1
    else:
        kv = prime(reuse, system, chunk.tokens, neighbours=neighbours)
        size = kv.size_bytes
        if not kept.save(key, kv):
            raise ChunkCacheError(
                f"no room for the {size} bytes of document {chunk.document}; give the directory "
                "more, or prepare fewer documents"
            )
        outcome.num_computed += 1
        outcome.num_stale += old is not None and is_new
        outcome.num_tokens += len(chunk.tokens)
    plain = reuse.chunks.key(system, chunk.tokens)
    catalog.record(PreparedChunk(chunk.document, plain, recipe, key, len(chunk.tokens), size))
    if old is not None and is_new and not catalog.keeps(old.key):
        kept.remove(old.key)


def _keep_system(reuse: ChunkReuse, kept: Kept, system: Sequence[int]) -> None:
    """Keep the system prompt's own KV, which is exact wherever it is used."""
    if system:
        key = reuse.chunks.key((), system)
        if key not in kept:
            kept.save(key, reuse.chunks.plain((), system))


def _drop(kept: Kept, catalog: ChunkCatalog, document: str) -> None:
    entry = catalog.entry(document)
    catalog.forget(document)
    if entry is not None and not catalog.keeps(entry.key):
        kept.remove(entry.key)


def _fitting(
    chunks: Sequence[CorpusChunk], numbers: Sequence[int], *, room: int, own: CorpusChunk
) -> list[tuple[int, ...]]:
    """Return the closest neighbours that fit into the context together with the chunk, in order."""
    room -= len(own.tokens)
    fitting: list[tuple[int, ...]] = []
    for number in reversed(numbers):
        tokens = chunks[number].tokens
        if not tokens or tokens == own.tokens:
            continue
        room -= len(tokens)
        if room < 0:
            break
        fitting.append(tokens)
    return fitting[::-1]


def _size(catalog: ChunkCatalog, key: str) -> int:
    entries = (catalog.entry(document) for document in catalog.documents)
    return next((e.size_bytes for e in entries if e is not None and e.key == key), 0)
