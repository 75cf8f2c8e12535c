"""De-duplicate documents, equal if their keys are, and passages (RAGBoost section 6).

Passages are cut by content: a gear hash over the last 32 bytes decides the cuts, so an insertion
moves no other cut. Depends on a text and those before it alone, in linear time.
"""

import hashlib
from collections.abc import Hashable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ragboost.types import KEY_OF, Document


def unique_documents(documents: Sequence[Document]) -> tuple[Document, ...]:
    """Drop repeats of a document; the others stay in relevance order."""
    keys = list(map(KEY_OF, documents))
    if len(set(keys)) == len(keys):
        return tuple(documents)
    first = dict(zip(reversed(keys), reversed(documents), strict=True))
    return tuple(map(first.__getitem__, dict.fromkeys(keys)))


def distinct_elements(keys: Sequence[str]) -> tuple[Hashable, ...]:
    """Give copies of a document distinct names, as the context index requires."""
    if len(set(keys)) == len(keys):
        return tuple(keys)
    seen: dict[str, int] = {}
    elements: list[Hashable] = []
    for key in keys:
        copy = seen[key] = seen.get(key, -1) + 1
        elements.append((key, copy) if copy else key)
    return tuple(elements)


_WINDOW_DOUBLINGS = 5  # 2 ** 5 = 32 bytes
_NEWLINE = 10


class PassageSizes(NamedTuple):
    """Shortest, mean and longest passage in bytes. Shorter texts and repetitions are kept."""

    min_bytes: int = 512
    avg_bytes: int = 1024
    max_bytes: int = 4096


class Reference(NamedTuple):
    """A passage that an earlier text contains verbatim."""

    source: int  # index of that text
    start: int  # its first character there
    end: int  # the character behind its last one


Pieces = tuple[str | Reference, ...]
"""A text as kept pieces and references, in order."""


class _Passage(NamedTuple):
    key: bytes
    start: int
    end: int


def share_passages(texts: Sequence[str], *, sizes: PassageSizes) -> list[Pieces]:
    """Replace whole texts that occurred before, then passages that did.

    A reference never points to another one: its target is always kept. Returns the pieces of each
    text.
    """
    whole: dict[str, int] = {}
    known: dict[bytes, Reference] = {}
    shared: list[Pieces] = []
    for at, text in enumerate(texts):
        if len(text) < sizes.min_bytes:
            shared.append((text,))
            continue
        first = whole.setdefault(text, at)
        if first != at and shared[first] == (text,):
            shared.append((Reference(first, 0, len(text)),))
            continue
        passages = cut_passages(text, sizes=sizes)
        pieces = tuple(_pieces(text, passages, known, sizes.min_bytes))
        _learn(known, at, pieces, passages)
        shared.append(pieces)
    return shared


def cut_passages(text: str, *, sizes: PassageSizes) -> list[_Passage]:
    """Cut a text by its content, at a line break if one follows soon enough.

    Every passage but the last has `min_bytes` to `max_bytes` bytes; no cut splits a character.
    """
    data = text.encode("utf-8", "surrogatepass")
    array = np.frombuffer(data, dtype=np.uint8)
    is_start = (array & 0xC0) != 0x80  # of a character
    places = np.cumsum(is_start, dtype=np.int64) - 1  # index of each byte's character
    passages: list[_Passage] = []
    start = 0
    for end in (*_cuts(array, is_start, sizes), len(data)):
        if end > start:
            key = hashlib.sha256(data[start:end]).digest()
            last = int(places[end]) if end < len(data) else len(text)
            passages.append(_Passage(key, int(places[start]), last))
        start = end
    return passages


def _cuts(
    array: NDArray[np.uint8], is_start: NDArray[np.bool_], sizes: PassageSizes
) -> Iterator[int]:
    hashes = _gear(array)
    spread = max(sizes.avg_bytes - sizes.min_bytes, 1)
    # The upper bits depend on the whole window.
    wanted = hashes < np.uint64((1 << 32) // spread)
    before = np.concatenate(([False], wanted[:-1])) & is_start  # a cut follows the window
    candidates = np.flatnonzero(before)
    lines = np.flatnonzero(np.concatenate(([False], array[:-1] == _NEWLINE)))
    start, size = 0, len(array)
    while size - start > sizes.min_bytes:
        longest = start + sizes.max_bytes
        end = _next(candidates, start + sizes.min_bytes, default=size)
        line = _next(lines, end, default=size)
        if line <= longest and line < size:
            end = line
        end = min(end, longest)
        if end >= size:
            break
        while not is_start[end]:
            end -= 1
        yield end
        start = end


def _next(places: NDArray[np.int64], at: int, *, default: int) -> int:
    i = int(np.searchsorted(places, at))
    return int(places[i]) if i < len(places) else default


def _gear(array: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """Hash each byte with the 31 before it, to 32 bits, in five vectorised steps."""
    # A fixed table of well-mixed numbers, equal in every process.
    mixed = np.arange(1, 257, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    table = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9) >> np.uint64(32)
    hashes = table[array]
    mask = np.uint64(0xFFFFFFFF)
    for doubling in range(_WINDOW_DOUBLINGS):
        step = 1 << doubling
        older = np.zeros_like(hashes)
        older[step:] = hashes[:-step] << np.uint64(step)
        hashes = (hashes + older) & mask
    return hashes


def _pieces(
    text: str, passages: Sequence[_Passage], known: dict[bytes, Reference], min_bytes: int
) -> Iterator[str | Reference]:
    """Join adjacent kept passages, and adjacent references into one source."""
    kept_from = 0
    at = 0
    while at < len(passages):
        found = known.get(passages[at].key)
        if found is None:
            at += 1
            continue
        start, last = passages[at].start, at
        while last + 1 < len(passages):
            following = known.get(passages[last + 1].key)
            if following is None or following[:2] != (found.source, found.end):
                break
            found, last = found._replace(end=following.end), last + 1
        end = passages[last].end
        at = last + 1
        if end - start < min_bytes:
            continue
        if kept_from < start:
            yield text[kept_from:start]
        yield found
        kept_from = end
    if kept_from < len(text) or not text:
        yield text[kept_from:]


def _learn(
    known: dict[bytes, Reference], source: int, pieces: Pieces, passages: Sequence[_Passage]
) -> None:
    kept: list[tuple[int, int]] = []
    place = 0
    for piece in pieces:
        size = len(piece) if isinstance(piece, str) else piece.end - piece.start
        if isinstance(piece, str):
            kept.append((place, place + size))
        place += size
    spans = iter(kept)
    span = next(spans, None)
    for passage in passages:
        while span is not None and span[1] <= passage.start:
            span = next(spans, None)
        if span is None:
            break
        if span[0] <= passage.start and passage.end <= span[1]:
            known.setdefault(passage.key, Reference(source, passage.start, passage.end))
