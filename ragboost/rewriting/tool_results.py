"""Send a tool result once: what later results of a chat repeat refers to it.

The outcome for a message depends on it and on the messages before it alone, so that a history that
is resent becomes the same bytes again without being remembered. Texts of tool messages only.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from ragboost.config import DedupSettings
from ragboost.dedup.passages import PassageSizes, Pieces, Reference, share_passages

_QUOTE_CHARS = 60


class Shared(NamedTuple):
    """Messages with references in place of repetitions.

    Attributes:
        messages: those that repeat nothing are the very objects that were given.
        saved_bytes: what they got shorter by.
    """

    messages: list[Any]
    saved_bytes: int


class _Text(NamedTuple):
    """A text: its message, the part of its content (None: all of it), the number of its result."""

    message: int
    part: int | None
    result: int
    text: str


def share_tool_results(messages: Sequence[Any], *, settings: DedupSettings) -> Shared:
    """Replace what tool results repeat of earlier ones.

    Args:
        messages: decoded; what is no object, such as a message that is sent as bytes, is left
            alone.
        settings: lengths of passages.
    """
    texts = _find_texts(messages)
    new = list(messages)
    if len(texts) < 2:
        return Shared(new, 0)
    sizes = PassageSizes(
        settings.passage_min_bytes, settings.passage_avg_bytes, settings.passage_max_bytes
    )
    saved = 0
    for found, pieces in zip(
        texts, share_passages([found.text for found in texts], sizes=sizes), strict=True
    ):
        if pieces == (found.text,):
            continue
        text = _render(pieces, texts)
        if text == found.text:
            continue
        saved += len(found.text.encode("utf-8", "surrogatepass"))
        saved -= len(text.encode("utf-8", "surrogatepass"))
        new[found.message] = _with_text(new[found.message], found.part, text)
    return Shared(new, saved)


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
    """Say where the text stands: results are counted, since templates do not show their ids."""
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
