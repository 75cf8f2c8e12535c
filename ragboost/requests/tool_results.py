"""Send a tool result once: replace what later results of a chat repeat by references.

The new message depends on it and those before it alone, so that a resent history keeps its bytes. A
reference is unambiguous: first and last words and length occur once in the result that it names.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from msgspec import Raw

from ragboost.booster.tokens import num_bytes
from ragboost.dedup import PassageSizes, Pieces, Reference, share_passages
from ragboost.requests.json_body import decode_message
from ragboost.requests.wires.body import Path, put
from ragboost.requests.wires.registry import ANY

_SIZES = PassageSizes(512, 1024, 4096)  # bytes of passages; shorter repetitions are kept
_QUOTE_CHARS = 60
_ITEMS = {**ANY.result_items, **ANY.opaque_items}
_TEXT_TYPES = (None, *ANY.text_types, *ANY.result_text_types)
_SEARCHED = 32  # characters read per character of the texts to see that references are unambiguous


class SharedResults(NamedTuple):
    messages: list[Any]  # those without repetitions are the client's objects
    saved_bytes: int


class _Text(NamedTuple):
    message: int
    path: Path  # from the message to the text
    result: int  # number of the tool result in the payload
    is_whole: bool  # the result holds nothing else
    text: str


def share_tool_results(
    messages: Sequence[Any],
    *,
    sizes: PassageSizes = _SIZES,
    has_documents: Callable[[str], object] = lambda _: False,
) -> SharedResults:
    """Replace passages that repeat earlier tool results by references.

    Args:
        messages: those that are encoded are counted and otherwise left alone.
        has_documents: true for a text with documents: none of its passages are replaced, since a
            later reference may quote how a document begins.
    """
    texts = list(_find_texts(messages))
    new = list(messages)
    if len(texts) < 2:
        return SharedResults(new, 0)
    saved = 0
    rendering = _Rendering(texts)
    for text, pieces in zip(
        texts, share_passages([text.text for text in texts], sizes=sizes), strict=True
    ):
        if len(pieces) > 1 and has_documents(text.text):
            pieces = (text.text,)
        shared = rendering.add(text, pieces)
        if shared == text.text:
            continue
        saved += num_bytes(text.text) - num_bytes(shared)
        new[text.message] = put(new[text.message], text.path, shared)
    return SharedResults(new, saved)


def _find_texts(messages: Sequence[Any]) -> Iterator[_Text]:
    result = 0
    for at, message in enumerate(messages):
        for path, content in _results(message):
            result += 1
            if isinstance(message, Raw):
                continue
            if isinstance(content, str):
                yield _Text(at, path, result, True, content)
            elif isinstance(content, list):
                for i, part in enumerate(content):
                    if _is_text(part):
                        is_whole = len(content) == 1
                        yield _Text(at, (*path, i, "text"), result, is_whole, part["text"])


def _results(message: Any) -> Iterator[tuple[Path, Any]]:
    message = decode_message(message)  # an encoded one was rewritten, and is never changed again
    if not isinstance(message, dict):
        return
    name = _named(message, _ITEMS)
    content = next((field for field in ANY.content if field in message), "")
    if message.get("role") in ANY.tool_roles:
        yield (content,), message.get(content)
    elif name:
        yield (name,), message.get(name)
    elif isinstance(message.get(content), list):
        for i, part in enumerate(message[content]):
            if isinstance(part, dict) and (name := _named(part, ANY.result_blocks)):
                yield (content, i, name), part.get(name)


def _named(holder: dict[str, Any], fields: Mapping[str, str]) -> str:
    kind = holder.get("type")
    return fields.get(kind, "") if isinstance(kind, str) else ""


def _is_text(part: Any) -> bool:
    return (
        isinstance(part, dict)
        and part.get("type") in _TEXT_TYPES
        and isinstance(part.get("text"), str)
    )


class _Rendering:
    """The texts as they are sent, one after another.

    Searching them for what a reference may name is bounded by the length of the texts so far, so
    that it is linear in all, and the same whenever a history is resent.
    """

    def __init__(self, texts: Sequence[_Text]) -> None:
        self._texts = texts
        self._sent: list[str] = []
        self._by_result: dict[int, list[int]] = {}
        for at, text in enumerate(texts):
            self._by_result.setdefault(text.result, []).append(at)
        self._budget = 0

    def add(self, text: _Text, pieces: Pieces) -> str:
        """Return the next text with references in place of repetitions."""
        self._budget += _SEARCHED * len(text.text)
        shared = "".join(
            piece if isinstance(piece, str) else self._refer(piece, text) for piece in pieces
        )
        self._sent.append(shared)
        return shared

    def _refer(self, reference: Reference, text: _Text) -> str:
        """Name the source by its number: chat templates do not show the ids of results."""
        source = self._texts[reference.source]
        passage = source.text[reference.start : reference.end]
        if source.is_whole and len(passage) == len(source.text) == len(text.text):
            name = f"[Same as tool result {source.result} above.]"
            return name if len(name) < len(passage) else passage
        shown = passage.strip()
        before, _, after = passage.partition(shown) if shown else (passage, "", "")
        first, last = _quote(shown[:_QUOTE_CHARS]), _quote(shown[-_QUOTE_CHARS:])
        name = (
            f'\n[Same text as in tool result {source.result} above, from "{first}" to "{last}", '
            f"{len(shown)} characters.]\n"
        )
        if len(name) >= len(shown) or not self._is_unique(shown, source.result):
            return passage
        return f"{before}{name}{after}"

    def _is_unique(self, shown: str, result: int) -> bool:
        """Return True if a reference to this passage of a result can name no other one."""
        words = (re.escape(word) for word in shown[:_QUOTE_CHARS].split())
        begin = re.compile(r"\s+".join(words))
        last, num_found = _quote(shown[-_QUOTE_CHARS:]), 0
        for at in self._by_result[result]:
            if at >= len(self._sent):
                break  # a later part of the same result
            sent = self._sent[at]
            self._budget -= len(sent)
            if self._budget < 0:
                return False
            place = begin.search(sent)
            while place is not None and num_found < 2:
                end = place.start() + len(shown)
                is_inside = end <= len(sent)
                num_found += is_inside and _quote(sent[end - _QUOTE_CHARS : end]) == last
                place = begin.search(sent, place.start() + 1) if is_inside else None
        return num_found == 1


def _quote(text: str) -> str:
    return " ".join(text.split())
