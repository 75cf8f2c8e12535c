"""Documents between delimiters that the operator has registered (`formats.delimiters`).

`start` and `end` enclose each document or, with a `separator`, all of them. Texts in which the
delimiters do not alternate, or in which an enclosed list occurs twice, are left alone.
"""

from ragboost.config import Delimiters
from ragboost.formats.groups import DocumentBlock, TextGroup
from ragboost.formats.text.spans import check_number, runs, strip


def find(text: str, delimiters: Delimiters) -> list[TextGroup]:
    if delimiters.start not in text:
        return []
    if delimiters.separator is not None:
        return _separated(text, delimiters, delimiters.separator)
    blocks = _delimited(text, delimiters)
    return [TextGroup(text, tuple(run), run[-1].end) for run in runs(text, blocks)]


def _delimited(text: str, delimiters: Delimiters) -> list[DocumentBlock]:
    opener, closer = delimiters.start, delimiters.end
    blocks: list[DocumentBlock] = []
    at = text.find(opener)
    while at >= 0:
        inner = at + len(opener)
        close = text.find(closer, inner)
        if close < 0 or (opener != closer and text.find(opener, inner, close) >= 0):
            return []
        end = close + len(closer)
        start, stop = strip(text, inner, close)
        blocks.append(DocumentBlock(at, end, text[start:stop] or None, start, stop))
        check_number(blocks)
        at = text.find(opener, end)
    return blocks


def _separated(text: str, delimiters: Delimiters, separator: str) -> list[TextGroup]:
    if text.count(delimiters.start) != 1:
        return []
    start = text.index(delimiters.start) + len(delimiters.start)
    end = text.find(delimiters.end, start)
    if end < 0 or text.find(delimiters.end, end + len(delimiters.end)) >= 0:
        return []
    blocks: list[DocumentBlock] = []
    at = start
    for piece in text[start:end].split(separator):
        first, last = strip(text, at, at + len(piece))
        if first < last:
            blocks.append(DocumentBlock(first, last, text[first:last], first, last))
            check_number(blocks)
        at += len(piece) + len(separator)
    return [TextGroup(text, tuple(blocks), end)] if len(blocks) > 1 else []
