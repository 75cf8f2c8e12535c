"""Find chunks, given as text, in the token ids of a prompt.

A chunk is looked for by the ids that it has when tokenised alone, without its first and last few
if these differ inside the prompt. What is not found is computed: a wrong cut cannot happen,
because stored KV is keyed by the ids of the prompt itself.
"""

import sys
from collections.abc import Awaitable, Callable, Sequence

import numpy as np

from ragboost.bounded_map import BoundedMap

Tokenize = Callable[[str], Awaitable[Sequence[int] | None]]
MIN_TOKENS = 16
_MAX_TEXTS = 100_000
_TRIMS = (0, 1, 2, 4)
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
            prompt: token ids.
            texts: of the chunks, in prompt order.
            tokenize: returns the ids of a text without special tokens; None: it failed.
        """
        hay, cursor = np.asarray(prompt, dtype=np.int32).tobytes(), 0
        spans: list[tuple[int, int]] = []
        for text in texts:
            span = _find(hay, await self._encode(text, tokenize), start=cursor)
            if span is not None:
                spans.append(span)
                cursor = span[1]
        return spans

    async def _encode(self, text: str, tokenize: Tokenize) -> bytes:
        ids = self._ids.get(text)
        if ids is None:
            ids = np.asarray(await tokenize(text) or (), dtype=np.int32).tobytes()
            if ids:
                self._ids.put(text, ids, size=sys.getsizeof(text) + len(ids))
        return ids


def _find(hay: bytes, ids: bytes, *, start: int) -> tuple[int, int] | None:
    for trim in _TRIMS:
        needle = ids[trim * _ITEM : len(ids) - trim * _ITEM]
        if len(needle) < MIN_TOKENS * _ITEM:
            return None
        at = hay.find(needle, start * _ITEM)
        while at >= 0 and at % _ITEM:  # not at the beginning of a token
            at = hay.find(needle, at + 1)
        if at >= 0:
            return at // _ITEM, (at + len(needle)) // _ITEM
    return None
