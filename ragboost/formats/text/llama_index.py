"""LlamaIndex nodes in a frame: lines of `key: value` metadata, a blank line, the text.

All nodes must have the same keys in the same order. Nodes without metadata are left alone: blank
lines separate paragraphs as well. Sources of the citation engine have the shape `numbered`.
"""

from ragboost.formats.groups import DocumentBlock, TextGroup
from ragboost.formats.text.frames import Frame
from ragboost.formats.text.spans import check_number, line_starts, strip

_MAX_KEYS = 32
_MAX_LINE = 2000
# A single key could be prose, except for the keys that loaders write.
_SINGLE_KEYS = ("source", "title", "url", "id", "name")


def find(text: str, frame: Frame) -> list[TextGroup]:
    keys = _header_keys(text, frame.start, frame.end)
    if not keys or (len(keys) == 1 and "_" not in keys[0] and keys[0] not in _SINGLE_KEYS):
        return []
    starts: list[tuple[int, int]] = []
    behind = -1
    for at in line_starts(text, f"{keys[0]}: ", frame.start, frame.end):
        header_end = _header_end(text, at, frame.end, keys) if at >= behind else -1
        if header_end >= 0:
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


def _header_keys(text: str, start: int, end: int) -> tuple[str, ...]:
    """Return the keys of the metadata lines at `start`; none unless a blank line follows."""
    keys: list[str] = []
    at = start
    while at < end and len(keys) <= _MAX_KEYS:
        stop = text.find("\n", at, min(end, at + _MAX_LINE))
        if stop < 0:
            return ()
        if stop == at:
            return tuple(keys)
        key, colon, _ = text[at:stop].partition(": ")
        if not colon or not key.isidentifier():
            return ()
        keys.append(key)
        at = stop + 1
    return ()


def _header_end(text: str, start: int, end: int, keys: tuple[str, ...]) -> int:
    """Return the offset of the blank line after exactly these metadata lines; -1 otherwise."""
    at = start
    for key in keys:
        stop = text.find("\n", at, min(end, at + _MAX_LINE))
        if stop < 0 or not text.startswith(f"{key}: ", at):
            return -1
        at = stop + 1
    return at if text.startswith("\n", at) else -1


def _block(text: str, start: int, header_end: int, end: int) -> DocumentBlock:
    end = max(strip(text, start, end)[1], header_end - 1)
    first, last = strip(text, header_end, end)
    return DocumentBlock(start, end, text[first:last] or None, first, last)
