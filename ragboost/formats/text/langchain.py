"""LangChain's `Source: ...` / `Content: ...` pairs, as its retrieval tools join them.

In tool results and in known frames. Bare `page_content` joined by blank lines is left alone: the
end of a document cannot be told from the end of a paragraph (register a separator instead).
"""

from ragboost.formats.groups import DocumentBlock, TextGroup
from ragboost.formats.text.frames import Frame
from ragboost.formats.text.spans import check_number, line_starts, strip

_SOURCE = "Source: "
_CONTENT = "\nContent:"
_MAX_SOURCE = 4000


def find(text: str, frame: Frame | None = None) -> list[TextGroup]:
    where = frame or Frame(*strip(text, 0, len(text)), len(text))
    starts: list[tuple[int, int]] = []
    for at in line_starts(text, _SOURCE, where.start, where.end):
        line_end = text.find("\n", at, min(where.end, at + _MAX_SOURCE))
        if line_end >= 0 and text.startswith(_CONTENT, line_end):
            starts.append((at, line_end + len(_CONTENT)))
            check_number(starts)
    if len(starts) < 2 or (frame is None and starts[0][0] != where.start):
        return []
    ends = [at for at, _ in starts[1:]] + [where.end]
    blocks = tuple(
        _block(text, start, content, end)
        for (start, content), end in zip(starts, ends, strict=True)
    )
    return [TextGroup(text, blocks, max(where.close if frame else 0, blocks[-1].end))]


def _block(text: str, start: int, content: int, end: int) -> DocumentBlock:
    first, last = strip(text, content, end)
    return DocumentBlock(start, max(last, content), text[first:last] or None, first, last)
