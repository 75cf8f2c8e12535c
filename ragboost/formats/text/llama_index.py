"""LlamaIndex nodes in a frame: lines of `key: value` metadata, a blank line, the text.

All nodes must have the same keys in the same order, or share one that a loader writes. Nodes
without metadata are left alone: blank lines separate paragraphs as well. Sources of the citation
engine have the shape `numbered`.
"""

from collections.abc import Iterator
from heapq import merge

from ragboost.formats.groups import DocumentBlock, TextGroup
from ragboost.formats.text.frames import Frame
from ragboost.formats.text.spans import check_number, finds, line_starts, strip

_MAX_KEYS = 32
_MAX_LINE = 2000
# A single key could be prose, except for the keys that loaders write.
_SINGLE_KEYS = ("source", "title", "url", "id", "name")


def find(text: str, frame: Frame) -> list[TextGroup]:
    keys, _ = _header(text, frame.start, frame.end)
    if not keys or (len(keys) == 1 and "_" not in keys[0] and keys[0] not in _SINGLE_KEYS):
        return []
    starts: list[tuple[int, int]] = []
    behind = -1
    for at in _candidates(text, frame, keys[0]):
        found, header_end = _header(text, at, frame.end) if at >= behind else ((), -1)
        if found == keys or (_is_paragraph(text, at) and _share_loader_key(found, keys)):
            starts.append((at, header_end))
            check_number(starts)
            behind = header_end
    if len(starts) < 2:
        return []
    ends = [at for at, _ in starts[1:]] + [frame.end]
    blocks = tuple(
        _block(text, start, header_end, end)
        for (start, header_end), end in zip(starts, ends, strict=True)
    )
    return [TextGroup(text, blocks, frame.close)]


def _candidates(text: str, frame: Frame, key: str) -> Iterator[int]:
    """Yield the offsets where a node may begin: lines with the first node's first key, and
    paragraphs, whose keys may be others."""
    paragraphs = (at + 2 for at in finds(text, "\n\n", frame.start, frame.end))
    last = -1
    for at in merge(line_starts(text, f"{key}: ", frame.start, frame.end), paragraphs):
        if at != last:
            yield at
        last = at


def _is_paragraph(text: str, at: int) -> bool:
    return text.startswith("\n\n", at - 2)


def _share_loader_key(found: tuple[str, ...], keys: tuple[str, ...]) -> bool:
    """Return True for nodes of several loaders: a PDF page has `page_label` and `file_path`, a text
    file `file_path` alone."""
    return any("_" in key and key in keys for key in found)


def _header(text: str, start: int, end: int) -> tuple[tuple[str, ...], int]:
    """Return the keys of the metadata lines at `start`, and the offset of the blank line behind
    them; no keys unless there is one."""
    keys: list[str] = []
    at = start
    while at < end and len(keys) <= _MAX_KEYS:
        stop = text.find("\n", at, min(end, at + _MAX_LINE))
        if stop == at:
            return tuple(keys), at
        key, colon, _ = text[at:stop].partition(": ") if stop >= 0 else ("", "", "")
        if not colon or not key.isidentifier():
            break
        keys.append(key)
        at = stop + 1
    return (), -1


def _block(text: str, start: int, header_end: int, end: int) -> DocumentBlock:
    end = max(strip(text, start, end)[1], header_end - 1)
    first, last = strip(text, header_end, end)
    return DocumentBlock(start, end, text[first:last] or None, first, last)
