"""The texts that one application sent lately, and what moved between them."""

from bisect import bisect_right
from collections.abc import Sequence

from ragboost.requests.formats.evidence.line_digests import Digests
from ragboost.requests.formats.evidence.list_model import Cut, ListModel
from ragboost.requests.formats.evidence.moved_lines import moved_lines
from ragboost.requests.formats.evidence.open_list import OpenList
from ragboost.requests.formats.evidence.template import MIN_OBSERVATIONS, Run

_MAX_TEXTS = 32  # that are kept when there are twice as many
_MAX_LINES = 2048
_MIN_SWAPS = 2
_MIN_MOVED = 2  # lines of a text that have moved, so that it holds a list
_MAX_COMPARED = 8
_TEXT_BYTES = 1000
_LINE_BYTES = 200
_MODEL_LINE_BYTES = 800  # of a line and its neighbours


class Traffic:
    """The latest texts with one beginning. Each new text is compared with few others."""

    def __init__(self) -> None:
        self.texts: list[Digests] = []
        self._holders: dict[int, int] = {}  # bit n: text n has the line
        self._moved: set[int] = set()
        self._num_swaps = 0
        self._in_all_swaps: frozenset[int] = frozenset()
        self._models: dict[bool, ListModel | OpenList] = {}  # by: only the last end is not known
        self._num_lines = 0

    @property
    def size_bytes(self) -> int:
        line_bytes = _LINE_BYTES + _MODEL_LINE_BYTES * len(self._models)
        return _TEXT_BYTES * len(self.texts) + line_bytes * len(self._holders)

    def add(self, text: Digests) -> Cut | None:
        """Learn from a text and return its documents, if they are certain.

        What seems to be a list with marks may also be a part of a document, or of the template.
        """
        self._compare(text)
        kinds = (True, False) if text.has_marks else (False,)
        models = {kind: self._model(kind, text) for kind in kinds if self._is_list(text)}
        self._remember(text)
        # Texts in which lines of text occur twice have overlapping documents.
        if not self._is_list(text) or any(t.copies and self._is_list(t) for t in self.texts):
            return None
        for kind in kinds:
            model = models.get(kind) or self._build(kind)
            cut = model.cut() if model is not None else None
            if cut is not None and (kind or _fits_marks(cut.runs, text.marks)):
                return cut
        return None

    def _build(self, has_marks: bool) -> ListModel | OpenList | None:
        texts = [t for t in self.texts if (t.has_marks or not has_marks) and self._is_list(t)]
        if len(texts) <= MIN_OBSERVATIONS:
            return None
        kind = OpenList if has_marks else ListModel
        model = self._models[has_marks] = kind(texts, self._moved)
        return model

    def _model(self, has_marks: bool, text: Digests) -> ListModel | OpenList | None:
        """Return the model of such texts that has learnt from this one, too, if it fits."""
        model = self._models.pop(has_marks, None)
        if model is None or not model.template.fits(text, self._holders.keys()):
            return None
        if not model.add(text):
            return None
        self._models[has_marks] = model
        return model

    def _is_list(self, text: Digests) -> bool:
        """Return True for a text with lines that have changed their order among themselves.

        One pair does not count, nor one line that changed places with others: lists that are
        edited have these, too.
        """
        if self._num_swaps < _MIN_SWAPS or self._in_all_swaps:
            return False
        return sum(key in self._moved for key in text.keys) >= _MIN_MOVED

    def _compare(self, text: Digests) -> None:
        """Find what has moved since earlier texts: the first ones, and those that share lines."""
        num = len(self.texts)
        common = (1 << num) - 1 if num <= _MAX_COMPARED else self._sharing(text)
        for _ in range(_MAX_COMPARED):
            if not common:
                break
            latest = common.bit_length() - 1
            common ^= 1 << latest
            moved = moved_lines(text, self.texts[latest])
            self._moved.update(moved.keys)
            for swap in moved.swaps:
                self._in_all_swaps = self._in_all_swaps & swap if self._num_swaps else swap
                self._num_swaps += 1

    def _sharing(self, text: Digests) -> int:
        """Return the texts, as bits, that share a line which has not moved yet, and another one.

        What all texts have tells nothing.
        """
        once = twice = unmoved = 0
        everywhere = (1 << len(self.texts)) - 1
        for key in text.keys:
            holders = self._holders.get(key, everywhere)
            if holders != everywhere:
                twice |= once & holders
                once |= holders
                if key not in self._moved:
                    unmoved |= holders
        return twice & unmoved

    def _remember(self, text: Digests) -> None:
        self.texts.append(text)
        bit = 1 << len(self.texts) - 1
        for key in text.keys:
            self._holders[key] = self._holders.get(key, 0) | bit
        self._num_lines += len(text.keys)
        if len(self.texts) > 2 * _MAX_TEXTS or self._num_lines > 2 * _MAX_LINES:
            self._forget()

    def _forget(self) -> None:
        """Forget the older half."""
        texts, self.texts = self.texts, []
        self._holders, self._num_lines, self._models = {}, 0, {}
        num, lines = 0, 0
        for text in reversed(texts[-_MAX_TEXTS:]):
            lines += len(text.keys)
            if lines > _MAX_LINES:
                break
            num += 1
        for text in texts[len(texts) - num :]:
            self._remember(text)
        self._moved &= self._holders.keys()


def _fits_marks(runs: Sequence[Run], marks: Sequence[int]) -> bool:
    """Return True if each document begins with a mark, or if one place holds all marks: a document
    or what stands around them."""
    bounds = [at for run in runs for at in run]
    places = {bisect_right(bounds, at) for at in marks}  # odd: in a document
    firsts = [first for first, _ in runs]
    return firsts == list(marks) or len(places) < 2 or not any(at % 2 for at in places)
