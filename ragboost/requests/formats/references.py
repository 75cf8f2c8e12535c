"""References to text that occurs earlier in the same payload.

A reference quotes the beginning of the document, so that the model finds it in any shape. It
depends on the payload alone: the same history always yields the same references.
"""

import re
from collections.abc import Iterator

from ragboost.requests.formats.groups import DocumentBlock, Edit, Group, TextGroup
from ragboost.requests.formats.instructions.questions import is_question

_INTRO_CHARS = 200
_QUESTION_CHARS = 400
_MARKS = re.compile(r"<[^<>]{1,200}>|[-=#*]{3,}")
_QUOTE_CHARS = 100
_LOOK_CHARS = 400


class EarlierTexts:
    """The texts of a payload up to the current one.

    Args:
        template: of a reference; contains `{document}`.
    """

    def __init__(self, template: str) -> None:
        self._template = template
        self._texts: dict[str, bool] = {}  # True: with a certain end, at one place at least
        self._by_quote: dict[str, str | None] = {}  # None: two texts begin like this

    def edits(self, group: Group) -> list[Edit]:
        """Return the edits that put references into the payload's next group."""
        return [
            group.referred(block, reference)
            for block, is_closed in _with_ends(group)
            if (reference := self._reference(block.text or "", is_closed=is_closed)) is not None
        ]

    def add(self, group: Group) -> None:
        """Note the documents of a group, to which the groups behind its message may refer."""
        for block, is_closed in _with_ends(group):
            if block.text is None:
                continue
            text = block.text.strip()
            if text not in self._texts:
                quote = _quote(text)
                self._by_quote[quote] = None if quote in self._by_quote else text
            self._texts[text] = is_closed or self._texts.get(text, False)

    def _reference(self, text: str, *, is_closed: bool) -> str | None:
        """Return a reference to a text; None if it does not occur earlier, if it ends with its
        message at both places, if another text begins like it, if it begins with a quotation, or if
        the reference would not be shorter."""
        text = text.strip()
        if text not in self._texts or not (is_closed or self._texts[text]):
            return None
        quote = _quote(text)
        if '"' in quote or self._by_quote.get(quote) is None:
            return None
        reference = self._template.replace("{document}", f'the document that begins with "{quote}"')
        return reference if len(reference) < len(text) else None


def _with_ends(group: Group) -> Iterator[tuple[DocumentBlock, bool]]:
    """Yield each document, and whether a mark or another document shows where it ends: a line
    behind the last one may belong to the prompt."""
    last, value = group.blocks[-1], group.value
    is_open = isinstance(value, str) and last.text_end == last.end and not value[last.end :].strip()
    is_open = is_open and "\n" in (last.text or "")
    for block in group.blocks:
        yield block, block is not last or not is_open


def stands_alone(group: Group, *, is_tool: bool) -> bool:
    """Return True if a text is a list of documents and nothing else: any other list may be a part
    of a document. A line may announce it, and a user's question may follow."""
    if not isinstance(group, TextGroup) or (is_tool and group.is_json):
        return True
    before = _MARKS.sub("", group.value[: group.blocks[0].start]).strip()
    behind = _MARKS.sub("", group.value[group.end :]).strip()
    if len(before) > _INTRO_CHARS or "\n" in before or len(behind) > _QUESTION_CHARS:
        return False
    if is_tool:
        return not behind and (not before or before.endswith((":", "：")))
    is_explicit = group.is_json or group.value.startswith("<", group.blocks[0].start)
    return is_explicit and (not behind or ("\n" not in behind and is_question(behind)))


def _quote(text: str) -> str:
    start = text[:_LOOK_CHARS].split()
    line = " ".join(start)
    if len(line) <= _QUOTE_CHARS:
        return line
    cut = line.rfind(" ", 0, _QUOTE_CHARS)
    return line[:cut] if cut > 0 else line[:_QUOTE_CHARS]
