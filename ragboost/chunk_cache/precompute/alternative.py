"""FusionRAG's alternative path (section 4): find the KV of a chunk that no exact prefix covers,
whatever preceded it when the KV was computed.

Two keys replace the paper's search through ever shorter prefixes: the whole chain before a chunk,
for which its KV is exact (`ChunkKV.exact_after`), and the chunk alone. One replica per chunk serves
both.
"""

from collections.abc import Sequence
from typing import Any

from ragboost.chunk_cache.assemble import extract
from ragboost.chunk_cache.kv.chunk import ChunkKV
from ragboost.chunk_cache.prefill import Prefill
from ragboost.chunk_cache.reuse import ChunkReuse

RECIPE = "replica"
"""Distinguishes replicas from plain KV, which was computed directly after the system prompt."""


class AlternativePath:
    """Chunk reuse without preparation: the chunks that a request computes serve the next ones.

    Args:
        reuse: the model and its store. Prepared and plain KV in the store is preferred.
    """

    def __init__(self, reuse: ChunkReuse) -> None:
        self.reuse = reuse

    def find(self, system: Sequence[int], chunks: Sequence[Sequence[int]]) -> list[ChunkKV | None]:
        """Return the KV of each chunk; None if it is not stored."""
        found = []
        for number, tokens in enumerate(chunks):
            kv = self.reuse.chunks.find(system, tokens, is_first=number == 0)
            found.append(
                kv or (self.reuse.store.get(self._key(system, tokens)) if tokens else None)
            )
        return found

    def prefill(
        self,
        system: Sequence[int],
        chunks: Sequence[Sequence[int]],
        question: Sequence[int],
        **options: Any,
    ) -> Prefill:
        """Fill the KV of a prompt like `ChunkReuse.prefill`, and store a replica of every missing
        chunk.

        Args:
            system, chunks, question: token ids.
            options: options of `ChunkReuse.prefill` except `stored` and `keep_tokens`.
        """
        self.reuse.precompute(system, [])
        stored = self.find(system, chunks)
        result = self.reuse.prefill(system, chunks, question, stored=stored, **options)
        tokens = [*system, *(token for chunk in chunks for token in chunk), *question]
        start = len(system)
        for chunk, known in zip(chunks, stored, strict=True):
            stop = start + len(chunk)
            if chunk and known is None:
                kv = extract(
                    self.reuse.adapter,
                    result.cache,
                    tokens,
                    start=start,
                    stop=stop,
                    is_exact=stop <= result.num_publishable,
                )
                self.reuse.store.put(self._key(system, chunk), kv)
            start = stop
        return result

    def _key(self, system: Sequence[int], tokens: Sequence[int]) -> str:
        return self.reuse.chunks.key(system, tokens, recipe=RECIPE)
