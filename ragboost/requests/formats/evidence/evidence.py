"""Find documents whose ends a text does not show: they came back whole, between other neighbours.

Keeps digests of lines, per tenant, and no texts. Does not know bodies or messages.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from copy import deepcopy
from itertools import pairwise
from threading import Lock
from typing import NamedTuple

from ragboost.requests.formats.evidence.line_digests import Digests, TextLine, read_lines
from ragboost.requests.formats.evidence.list_model import Cut
from ragboost.requests.formats.evidence.traffic import Traffic
from ragboost.requests.formats.frames.not_documents import is_dialogue, is_work
from ragboost.requests.formats.frames.sequences import are_in_sequence
from ragboost.requests.formats.instructions.asked_order import asked_order
from ragboost.util.bounded_map import BoundedMap

_MAX_CHARS = 256 * 1024
_MIN_TEXT = 300
_MIN_LINES = 3
_MEAN_LINE = 20  # characters of a line; shorter ones are no documents
_MIN_CHARS = 48  # of a document
_MEAN_CHARS = 160  # of the documents of a list
_NUM_HEADS = 3  # texts with one beginning, from which on this is a part of the template
_MAX_TENANTS = 64
_MAX_BEGINNINGS = 64  # of a tenant, and together
_MAX_SIZE_BYTES = 8 << 20
_MAX_DECISIONS = 2048
_MAX_SPANS = 16_384
_SPAN_BYTES = 150
_TTL_S = 86_400.0
# A document named by its place, for lists without numbers; `asked_order` knows the other ways.
_PLACES = re.compile(
    r"\b(?:next|previous)\s+(?:document|passage|paragraph|source|text|excerpt|chunk|article)"
    r"|(?<!\n)\b(?:document|passage|paragraph|source|excerpt|chunk|article)\s+(?:no\.?\s*|number\s+|#)?\d",
    re.IGNORECASE,
)


class DocumentSpan(NamedTuple):
    start: int
    end: int
    label: int = -1  # where a label with the number of its place begins; -1: it has none


class _Tenant:
    def __init__(self) -> None:
        self.traffic: BoundedMap[int, Traffic] = BoundedMap(
            max_entries=_MAX_BEGINNINGS, max_size=_MAX_SIZE_BYTES, ttl_s=_TTL_S
        )
        self.decisions: BoundedMap[int, tuple[DocumentSpan, ...]] = BoundedMap(
            max_entries=_MAX_DECISIONS, max_size=_MAX_SPANS, ttl_s=_TTL_S
        )
        # Of prompts: the lines before the last one, the last one's digest and size, the decision.
        self.prompts: BoundedMap[int, tuple[int, int, int]] = BoundedMap(
            max_entries=_MAX_DECISIONS, ttl_s=_TTL_S
        )

    def expire(self) -> None:
        self.traffic.expire()
        self.decisions.expire()
        self.prompts.expire()

    def continued(self, text: str) -> int:
        """Return the decision about an earlier prompt with which this one begins; 0: none."""
        known = 0
        for name, at in _line_starts(text) if self.prompts else ():
            if (prompt := self.prompts.peek(name)) is not None:
                digest, size, decision = prompt
                if hash(text[at : at + size]) == digest and decision in self.decisions:
                    known = decision
        return known

    def add_prompt(self, text: str, decision: int) -> None:
        """Remember a prompt that later ones may begin with."""
        text = text.rstrip()
        *_, (name, at) = _line_starts(text)
        self.prompts.put(name, (hash(text[at:]), len(text) - at, decision))

    @property
    def size_bytes(self) -> int:
        num = self.decisions.size + 2 * len(self.prompts)
        return self.traffic.size + _SPAN_BYTES * num


class Evidence:
    """The documents that the traffic of each tenant has shown. Thread-safe.

    The cut of a text is remembered, so that a conversation that resends it later is cut as its
    first turn was.
    """

    def __init__(self, *, max_bytes: int = 64 << 20) -> None:
        self._tenants: BoundedMap[str, _Tenant] = BoundedMap(
            max_entries=_MAX_TENANTS, max_size=max_bytes
        )
        self._lock = Lock()

    def cut(
        self,
        text: str,
        *,
        tenant: str,
        is_first_turn: bool,
        is_prompt: bool = False,
        marks: Sequence[int] = (),
        learns: bool = True,
    ) -> tuple[DocumentSpan, ...]:
        """Return the documents of a text, which may change places; empty if they are not known.

        Learns from the text, too. A text of a later turn that was not cut before is left alone: the
        engine has it as it was.

        Args:
            is_prompt: the text may hold a whole conversation, so that an earlier text begins it.
            marks: where documents begin, if only the end of the last one is not known.
            learns: False: say what would be found, and change nothing.
        """
        if not _MIN_TEXT <= len(text) <= _MAX_CHARS:
            return ()
        name = hash((text, tuple(marks)))
        with self._lock:
            known = self._tenants.peek(tenant) or _Tenant()
            known.expire()
            if is_prompt and name not in known.decisions:
                name = known.continued(text) or name
            if (spans := known.decisions.peek(name)) is None:
                spans = _learn(known, text, marks, learns=learns) if is_first_turn else ()
                if is_prompt and learns:
                    known.add_prompt(text, name)
            if learns:
                known.decisions.put(name, spans, size=1 + len(spans))
                self._tenants.put(tenant, known, size=known.size_bytes)
            return spans


def _line_starts(text: str) -> Iterator[tuple[int, int]]:
    """Yield the digest of the lines before each line, and where it begins."""
    digest, start = 1, 0
    while True:
        yield digest, start
        if (end := text.find("\n", start)) < 0:
            return
        digest, start = hash((digest, text[start:end])), end + 1


def _learn(
    tenant: _Tenant, text: str, marks: Sequence[int], *, learns: bool
) -> tuple[DocumentSpan, ...]:
    lines = read_lines(text)
    if not _MIN_LINES <= len(lines) <= len(text) // _MEAN_LINE:
        return ()
    starts = [line.start for line in lines]
    digests = Digests(lines, sorted({bisect_right(starts, mark) - 1 for mark in marks} - {-1}))
    if len(digests.marks) < len(marks):
        return ()
    best: tuple[DocumentSpan, ...] = ()
    for name, traffic in _all_traffic(tenant, lines[0]):
        if learns:
            cut = traffic.add(digests)
            tenant.traffic.put(name, traffic, size=traffic.size_bytes)
        else:
            cut = deepcopy(traffic).add(digests)
        spans = _spans(text, lines, cut) if cut is not None else ()
        if len(spans) > len(best):
            best = spans
    return best


def _all_traffic(tenant: _Tenant, first: TextLine) -> list[tuple[int, Traffic]]:
    """Return what is known of texts with this first line, with its label, and of those whose first
    line is another one each time (0)."""
    names = {first.key, first.label} - {0}
    found = [(name, tenant.traffic.peek(name) or Traffic()) for name in names]
    if all(len(traffic.texts) < _NUM_HEADS for _, traffic in found):
        found.append((0, tenant.traffic.peek(0) or Traffic()))
    return found


def _are_worth_it(text: str, spans: Sequence[DocumentSpan]) -> bool:
    """Return True for documents that are long enough and whose places nobody talks about."""
    sizes = [span.end - span.start for span in spans]
    if len(sizes) < 2 or min(sizes) < _MIN_CHARS or sum(sizes) < _MEAN_CHARS * len(sizes):
        return False
    start, end = spans[0].start, spans[-1].end
    contents = [text[span.start : span.end] for span in spans]
    if is_work(text, start, end) or all(map(is_dialogue, contents)) or are_in_sequence(contents):
        return False
    cue = text.rstrip().rpartition("\n")[2]  # examples show how to go on behind it
    if cue.endswith((":", "：")) and all(f"\n{cue}" in content for content in contents):
        return False
    around = text[:start] + "\n" + text[end:]
    return not asked_order(around) and _PLACES.search(around) is None


def _spans(text: str, lines: Sequence[TextLine], cut: Cut) -> tuple[DocumentSpan, ...]:
    ends = [(lines[first], lines[end - 1].end) for first, end in cut.runs]
    spans = [DocumentSpan(line.start, end) for line, end in ends]
    if cut.has_numbers:
        spans = [DocumentSpan(line.text_start, end, line.start) for line, end in ends]
    are_alike = cut.has_marks or _are_alike(lines, cut, text)
    return tuple(spans) if are_alike and _are_worth_it(text, spans) else ()


def _are_alike(lines: Sequence[TextLine], cut: Cut, text: str) -> bool:
    """Return True if the same stands between all documents, and nothing else beside them."""
    runs = cut.runs
    beside = (*lines[: runs[0][0]][-1:], *lines[runs[-1][1] :][:1])
    if any(line.is_score for line in beside):
        return False  # which may be that of the document beside it
    gaps = {_gap(text[lines[a[1] - 1].end : lines[b[0]].start]) for a, b in pairwise(runs)}
    if len(gaps) > 1:
        return False
    gap = gaps.pop().split()
    if gap and len(runs) < 3:
        return False
    start = lines[cut.before].end if cut.before >= 0 else 0
    end = lines[cut.behind].start if cut.behind >= 0 else len(text)
    before = text[start : lines[runs[0][0]].start].split()
    behind = text[lines[runs[-1][1] - 1].end : end].split()
    if not gap:  # what stands around the list in all texts is the template's, such as a rule
        return (cut.has_head or not before) and (cut.has_tail or not behind)
    return before == gap[len(gap) - len(before) :] and behind == gap[: len(behind)]


def _gap(text: str) -> str:
    return text if text.strip() else "\n\n" if text.count("\n") > 1 else "\n"
