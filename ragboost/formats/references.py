"""References to text that stands earlier in the same payload.

A reference quotes the beginning of the document, so that it can be found in any shape. Without
state: the same history gets the same references.
"""

_QUOTE_CHARS = 100
_LOOK_CHARS = 400


class Standing:
    """The texts that stand in a payload so far.

    Args:
        template: of the reference; contains `{document}`.
    """

    def __init__(self, template: str) -> None:
        self._template = template
        self._texts: set[str] = set()
        self._by_quote: dict[str, str | None] = {}  # None: two texts begin like this

    def add(self, text: str) -> None:
        """Add a text in full; white space around it does not count."""
        text = text.strip()
        if text in self._texts:
            return
        self._texts.add(text)
        quote = _quote(text)
        self._by_quote[quote] = None if quote in self._by_quote else text

    def reference(self, text: str) -> str | None:
        """What may stand for a text: None where it does not stand earlier, where another one begins
        like it, and where the reference would be no shorter."""
        text = text.strip()
        if text not in self._texts:
            return None
        quote = _quote(text)
        if self._by_quote.get(quote) is None:
            return None
        reference = self._template.replace("{document}", f'the document that begins with "{quote}"')
        return reference if len(reference) < len(text) else None


def _quote(text: str) -> str:
    """The first words in one line."""
    start = text[:_LOOK_CHARS].split()
    line = " ".join(start)
    if len(line) <= _QUOTE_CHARS:
        return line
    cut = line.rfind(" ", 0, _QUOTE_CHARS)
    return line[:cut] if cut > 0 else line[:_QUOTE_CHARS]
