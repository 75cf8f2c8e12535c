"""References to text that occurs earlier in the same payload.

A reference quotes the beginning of the document, so that the model finds it in any shape. It
depends on the payload alone: the same history always yields the same references.
"""

from ragboost.formats.groups import Edit, Group

_QUOTE_CHARS = 100
_LOOK_CHARS = 400


class EarlierTexts:
    """The texts of a payload up to the current one.

    Args:
        template: of a reference; contains `{document}`.
    """

    def __init__(self, template: str) -> None:
        self._template = template
        self._texts: set[str] = set()
        self._by_quote: dict[str, str | None] = {}  # None: two texts begin like this

    def edits(self, group: Group) -> list[Edit]:
        """Return the edits that put references into the payload's next group."""
        edits: list[Edit] = []
        for block in group.blocks:
            reference = None if block.text is None else self._reference(block.text)
            if reference is not None:
                edits.append(group.referred(block, reference))
        return edits

    def add(self, group: Group) -> None:
        """Note the documents of a group, to which the groups behind its message may refer."""
        for block in group.blocks:
            if block.text is not None:
                self._add(block.text)

    def _add(self, text: str) -> None:
        text = text.strip()
        if text in self._texts:
            return
        self._texts.add(text)
        quote = _quote(text)
        self._by_quote[quote] = None if quote in self._by_quote else text

    def _reference(self, text: str) -> str | None:
        """Return a reference to a text; None if it does not occur earlier, if another text begins
        like it, or if the reference would not be shorter."""
        text = text.strip()
        if text not in self._texts:
            return None
        quote = _quote(text)
        if self._by_quote.get(quote) is None:
            return None
        reference = self._template.replace("{document}", f'the document that begins with "{quote}"')
        return reference if len(reference) < len(text) else None


def _quote(text: str) -> str:
    start = text[:_LOOK_CHARS].split()
    line = " ".join(start)
    if len(line) <= _QUOTE_CHARS:
        return line
    cut = line.rfind(" ", 0, _QUOTE_CHARS)
    return line[:cut] if cut > 0 else line[:_QUOTE_CHARS]
