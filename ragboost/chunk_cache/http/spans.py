"""Find chunks, given as text, in the token ids of a prompt: by their ids when tokenised alone,
without the first and last few if these differ there. What is not found is computed: a wrong cut
cannot happen, because stored KV is keyed by the prompt's own ids."""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ragboost.chunk_cache.core.request import MIN_CHUNK_TOKENS, ChunkPosition
from ragboost.util.bounded_map import BoundedMap

Tokenize = Callable[[str], Awaitable[Sequence[int] | None]]
_MAX_TEXTS, _MAX_BYTES = 100_000, 64 << 20
# Tokens that are left out at the beginning and at the end.
_TRIMS = ((0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (2, 2), (4, 4))
_MAX_COMPARED = 1 << 28  # tokens of the prompt per request, a second or less


class ChunkFinder:
    """Finds chunks in prompts. Keeps the ids of the chunks that it saw last."""

    def __init__(self) -> None:
        self._ids: BoundedMap[str, str] = BoundedMap(max_entries=_MAX_TEXTS, max_size=_MAX_BYTES)

    async def find(
        self, prompt: Sequence[int], texts: Sequence[str], *, tokenize: Tokenize
    ) -> list[tuple[int, int] | None]:
        """Return start and stop of each text, in prompt order, by its ids without special ones."""
        chunks = [await self._encode(text, tokenize) for text in texts]
        spans = []
        for span in search_spans(prompt, chunks):
            spans.append(span)
            if span is None:
                await asyncio.sleep(0)  # the event loop is the API server's
        return spans

    async def _encode(self, text: str, tokenize: Tokenize) -> str:
        ids = self._ids.get(text)
        if ids is None:
            ids = pack_ids((text and await tokenize(text)) or ())
            if ids:
                self._ids.put(text, ids, size=sys.getsizeof(text) + sys.getsizeof(ids))
        return ids


def chunk_texts(fields: Mapping[str, Any], positions: Sequence[ChunkPosition]) -> list[str]:
    """Return the text at each position; an empty one where a message has no such."""
    texts = []
    for number, start, stop in positions:
        text = _text(fields, number)
        texts.append(text[start:stop] if stop <= len(text) else "")
    return texts


def _text(fields: Mapping[str, Any], number: int) -> str:
    messages = fields.get("messages")
    if not isinstance(messages, list):
        prompt = fields.get("prompt")
        return prompt if isinstance(prompt, str) else ""
    message = messages[number] if number < len(messages) else None
    content = message.get("content") if isinstance(message, dict) else None
    if isinstance(content, str):
        return content
    parts = [part.get("text") for part in content or () if isinstance(part, dict)]
    texts = [part for part in parts if isinstance(part, str)]
    return "\n".join(texts) if len(texts) == len(content or ()) else ""


def find_spans(prompt: Sequence[int], chunks: Sequence[str]) -> list[tuple[int, int]]:
    return [span for span in search_spans(prompt, chunks) if span is not None]


def search_spans(prompt: Sequence[int], chunks: Sequence[str]) -> Iterator[tuple[int, int] | None]:
    """Yield start and stop of each packed chunk, ascending; None where it is not found. Ends early
    when `_MAX_COMPARED` tokens were compared in vain."""
    hay, cursor, num_compared = pack_ids(prompt), 0, 0
    for ids in chunks:
        span = _find(hay, ids, start=cursor)
        yield span
        if span is not None:
            cursor = span[1]
            continue
        num_compared += (len(hay) - cursor) * len(_TRIMS)
        if num_compared > _MAX_COMPARED:
            return


def pack_ids(ids: Sequence[int]) -> str:
    """Return token ids as characters, which are searched fast and only at whole tokens."""
    try:
        return np.asarray(ids, dtype="<u4").tobytes().decode("utf-32-le", "surrogatepass")
    except (ValueError, OverflowError):
        return ""


def _find(hay: str, ids: str, *, start: int) -> tuple[int, int] | None:
    for first, last in _TRIMS:
        needle = ids[first : len(ids) - last]
        if len(needle) < MIN_CHUNK_TOKENS:
            return None
        at = hay.find(needle, start)
        if at >= 0:
            return at, at + len(needle)
    return None
