"""Send a tool result once: replace what later results of a chat repeat by references.

The result for a message depends on it and on the messages before it alone, so that a resent history
always yields the same bytes. Knows texts of tool messages only.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from ragboost.config import DedupSettings
from ragboost.dedup.passages import PassageSizes, Pieces, Reference, share_passages

_QUOTE_CHARS = 60


class SharedResults(NamedTuple):
    """Messages with references in place of repetitions.

    Attributes:
        messages: those without repetitions are the objects that were given.
        saved_bytes: bytes by which they became shorter.
    """

    messages: list[Any]
    saved_bytes: int


class _Text(NamedTuple):
    """A text, with the indices of its message and content part and the number of its result."""

    message: int
    part: int | None
    result: int
    text: str


def share_tool_results(messages: Sequence[Any], *, settings: DedupSettings) -> SharedResults:
    """Replace passages that repeat earlier tool results by references.

    Args:
        messages: decoded; those that are not objects, such as encoded ones, are left alone.
        settings: lengths of passages.
    """
    texts = _find_texts(messages)
    new = list(messages)
    if len(texts) < 2:
        return SharedResults(new, 0)
    sizes = PassageSizes(
        settings.passage_min_bytes, settings.passage_avg_bytes, settings.passage_max_bytes
    )
    saved = 0
    for text, pieces in zip(
        texts, share_passages([text.text for text in texts], sizes=sizes), strict=True
    ):
        if pieces == (text.text,):
            continue
        shared = _render(pieces, texts)
        if shared == text.text:
            continue
        saved += len(text.text.encode("utf-8", "surrogatepass"))
        saved -= len(shared.encode("utf-8", "surrogatepass"))
        new[text.message] = _with_text(new[text.message], text.part, shared)
    return SharedResults(new, saved)


def _find_texts(messages: Sequence[Any]) -> list[_Text]:
    texts: list[_Text] = []
    result = 0
    for at, message in enumerate(messages):
        if not isinstance(message, dict) or message.get("role") != "tool":
            continue
        result += 1
        content = message.get("content")
        if isinstance(content, str):
            texts.append(_Text(at, None, result, content))
        elif isinstance(content, list):
            texts.extend(
                _Text(at, i, result, part["text"])
                for i, part in enumerate(content)
                if isinstance(part, dict) and isinstance(part.get("text"), str)
            )
    return texts


def _with_text(message: dict[str, Any], part: int | None, text: str) -> dict[str, Any]:
    if part is None:
        return {**message, "content": text}
    parts = list(message["content"])
    parts[part] = {**parts[part], "text": text}
    return {**message, "content": parts}


def _render(pieces: Pieces, texts: Sequence[_Text]) -> str:
    return "".join(
        piece if isinstance(piece, str) else _refer(piece, texts[piece.source]) for piece in pieces
    )


def _refer(reference: Reference, source: _Text) -> str:
    passage = source.text[reference.start : reference.end]
    name = _name(reference, source)
    return name if len(name) < len(passage) else passage


def _name(reference: Reference, source: _Text) -> str:
    """Name the source by its number: chat templates do not show the ids of results."""
    if reference.start == 0 and reference.end == len(source.text):
        return f"[Same as tool result {source.result} above.]"
    passage = source.text[reference.start : reference.end].strip()
    first, last = _quote(passage[:_QUOTE_CHARS]), _quote(passage[-_QUOTE_CHARS:])
    return (
        f'\n[Same text as in tool result {source.result} above, from "{first}" to "{last}", '
        f"{reference.end - reference.start} characters.]\n"
    )


def _quote(text: str) -> str:
    return " ".join(text.split())
