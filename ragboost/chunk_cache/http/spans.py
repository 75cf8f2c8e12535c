"""Find chunks, given as text, in the token ids of a prompt.

A chunk is looked for by the ids that it has when tokenised alone, without its first and last few
if these differ inside the prompt. What is not found is computed: a wrong cut cannot happen,
because stored KV is keyed by the ids of the prompt itself.
"""

import sys
from collections.abc import Awaitable, Callable, Sequence

import numpy as np

from ragboost.bounded_map import BoundedMap
from ragboost.chunk_cache.core.request import MIN_CHUNK_TOKENS

Tokenize = Callable[[str], Awaitable[Sequence[int] | None]]
_MAX_TEXTS = 100_000
# Tokens that are left out at the beginning and at the end.
_TRIMS = ((0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (2, 2), (4, 4))
_ITEM = np.dtype(np.int32).itemsize


class ChunkFinder:
    """Finds chunks in prompts. Keeps the ids of the chunks that it saw last."""

    def __init__(self, *, capacity_bytes: int = 64 << 20) -> None:
        self._ids: BoundedMap[str, bytes] = BoundedMap(
            max_entries=_MAX_TEXTS, max_size=capacity_bytes
        )

    async def find(
        self, prompt: Sequence[int], texts: Sequence[str], *, tokenize: Tokenize
    ) -> list[tuple[int, int]]:
        """Return start and stop of each chunk that is found, in tokens, ascending.

        Args:
            texts: of the chunks, in prompt order.
            tokenize: returns the ids of a text without special tokens; None: it failed.
        """
        return find_spans(prompt, [await self._encode(text, tokenize) for text in texts])

    async def _encode(self, text: str, tokenize: Tokenize) -> bytes:
        ids = self._ids.get(text)
        if ids is None:
            ids = pack_ids(await tokenize(text) or ())
            if ids:
                self._ids.put(text, ids, size=sys.getsizeof(text) + len(ids))
        return ids


def find_spans(prompt: Sequence[int], chunks: Sequence[bytes]) -> list[tuple[int, int]]:
    """Return start and stop of each chunk that is found, in tokens, ascending.

    Args:
        chunks: ids of each chunk by itself, in prompt order, see `pack_ids`.
    """
    hay, cursor = pack_ids(prompt), 0
    spans: list[tuple[int, int]] = []
    for ids in chunks:
        span = _find(hay, ids, start=cursor)
        if span is not None:
            spans.append(span)
            cursor = span[1]
    return spans


def pack_ids(ids: Sequence[int]) -> bytes:
    """Return token ids as bytes, which are searched fast."""
    return np.asarray(ids, dtype=np.int32).tobytes()


def _find(hay: bytes, ids: bytes, *, start: int) -> tuple[int, int] | None:
    for first, last in _TRIMS:
        needle = ids[first * _ITEM : len(ids) - last * _ITEM]
        if len(needle) < MIN_CHUNK_TOKENS * _ITEM:
            return None
        at = hay.find(needle, start * _ITEM)
        while at >= 0 and at % _ITEM:  # not at the beginning of a token
            at = hay.find(needle, at + 1)
        if at >= 0:
            return at // _ITEM, (at + len(needle)) // _ITEM
    return None
