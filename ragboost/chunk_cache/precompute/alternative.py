"""FusionRAG's alternative path (section 4): a chunk that no exact prefix covers is found by itself,
whatever stood before it when its KV was computed.

Two keys replace the paper's search through shorter and shorter prefixes: that of the whole chain
before a chunk, under which its KV is exact, and that of the chunk alone. One replica is kept per
chunk, which carries both. Knows prompts and results. Does not know how KV is selected or computed.
"""

from collections.abc import Sequence
from typing import Any

from ragboost.chunk_cache.kv.keep import kv_of
from ragboost.chunk_cache.kv.store import ChunkKV
from ragboost.chunk_cache.prefill import Prefill
from ragboost.chunk_cache.reuse import ChunkReuse

RECIPE = "replica"
"""Keeps replicas apart from plain KV, which was computed right after the system prompt."""


class AlternativePath:
    """Chunk reuse whose chunks come from the requests themselves: nothing is prepared, and what a
    request computed is there for the next one.

    Args:
        reuse: the model and its store. Prepared and plain KV in the store is preferred.
    """

    def __init__(self, reuse: ChunkReuse) -> None:
        self.reuse = reuse

    def find(self, system: Sequence[int], chunks: Sequence[Sequence[int]]) -> list[ChunkKV | None]:
        """Return the KV of each chunk; None where there is none. Whether it is exact here, because
        the same tokens stand before it as when it was computed, it says itself."""
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
        """Fill the KV of a prompt as `ChunkReuse.prefill` does, and keep a replica of every chunk
        that was not there.

        Args:
            system, chunks, question: token ids.
            options: of `ChunkReuse.prefill`; not `stored` or `keep_tokens`.
        """
        self.reuse.precompute(system, [])
        stored = self.find(system, chunks)
        result = self.reuse.prefill(system, chunks, question, stored=stored, **options)
        tokens = [*system, *(token for chunk in chunks for token in chunk), *question]
        start = len(system)
        for chunk, known in zip(chunks, stored, strict=True):
            stop = start + len(chunk)
            if chunk and known is None:
                kv = kv_of(
                    self.reuse.adapter,
                    tokens,
                    result,
                    span=(start, stop),
                    num_exact=result.num_publishable,
                )
                self.reuse.store.put(self._key(system, chunk), kv)
            start = stop
        return result

    def _key(self, system: Sequence[int], tokens: Sequence[int]) -> str:
        return self.reuse.chunks.key(system, tokens, recipe=RECIPE)
