"""Find what texts with one beginning have in common."""

from collections.abc import Sequence, Set

from ragboost.requests.formats.evidence.line_digests import Digests

MIN_OBSERVATIONS = 3
_SETTLED = 32  # texts, from which on more tell nothing new
_FEW_TEXTS, _MANY_LINES = 8, 512

Run = tuple[int, int]  # the first line of a document, and the line behind its last one


class Template:
    """The lines that all texts have once, and those that one of them has several times."""

    def __init__(self, texts: Sequence[Digests]) -> None:
        self.dropped = set[int]().union(*[text.repeated for text in texts])
        self.everywhere = set[int].intersection(*[text.singles() for text in texts])
        self.constants = self.everywhere - self.dropped
        self._num_texts = len(texts)
        is_settled = len(texts) > _FEW_TEXTS and sum(len(text.keys) for text in texts) > _MANY_LINES
        self._most = len(texts) + (len(texts) if is_settled else max(1, len(texts) // 4))

    def fits(self, text: Digests, seen: Set[int]) -> bool:
        """Return True if this template is that of a new text, too.

        False: also if so many texts have come that more is known of it.

        Args:
            seen: lines of earlier texts.
        """
        self._num_texts += 1
        if self._most <= self._num_texts <= _SETTLED:
            return False
        new = text.repeated - self.dropped
        self.dropped |= new
        return new.isdisjoint(seen) and self.everywhere <= text.singles()
