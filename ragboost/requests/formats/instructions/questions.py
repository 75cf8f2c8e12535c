"""Tell a question that stands alone behind a list of documents from the end of the last one."""

import re
from collections.abc import Sequence
from enum import IntEnum

from ragboost.requests.formats.frames.spans import strip

_BLANK_LINE = re.compile(r"\n[ \t\r]*\n")
_MAX_TAIL = 2000
_MAX_SHORT = 120  # characters of a line that may be an instruction
_LAST_CHARS = 80  # of a text, which tell how it ends
_QUESTIONS = (
    "question query user input request task instruction frage pregunta domanda pergunta вопрос "
    "问题 問題 用户问题 提问 問い 質問 질문 "
)
_ASKS = re.compile(r"[#* ]{0,6}(?:[^\W\d_]{1,12} ){0,2}[^\W\d_]{1,12}[*]{0,2}[:：]")
_ENDS = ("?", "？", "؟")
_COLONS = (":", "：", "**")
_SENTENCE_ENDS = ".!?。！？؟…)）\"'”’»"
_QUESTION_WORDS = frozenset(_QUESTIONS.split())
# What instructions say where a question follows.
_ANNOUNCES = re.compile(
    r"\b(?:answer|questions?|quer(?:y|ies)|frage|(?:be)?antworte?|réponds|répondez|pregunta|responde"
    r"|domanda|rispondi|pergunta)\b|вопрос|ответь|[问問]题|問題|質問|回答|질문|답",
    re.IGNORECASE,
)
_MAX_LOOKED_AT = 16_384


class Question(IntEnum):
    """Tells how certain a question behind the documents of a text is."""

    NONE = 0
    POSSIBLE = 1  # if the text's own instructions speak of one
    ANNOUNCED = 2  # by the instructions of another message


def announces_question(text: str) -> bool:
    """Return True for instructions that speak of a question and ask none themselves: else one that
    stands behind the documents may be the end of the last one."""
    text = text[:_MAX_LOOKED_AT]
    return _ANNOUNCES.search(text) is not None and not any(mark in text for mark in _ENDS)


def end_before_question(
    text: str, begin: int, start: int, bodies: Sequence[tuple[int, int]], question: Question
) -> int:
    """Return the end of the last document, where a question stands alone behind it; -1 if that is
    not certain.

    Args:
        begin: where the list begins.
        start: where the last document's text begins.
        bodies: where the texts of the others are, which blank lines separate.
        question: what is known of it.
    """
    if any(_BLANK_LINE.search(text, *body) for body in bodies):
        return -1
    start = strip(text, start, len(text))[0]
    blanks = list(_BLANK_LINE.finditer(text, start, len(text)))
    while blanks and not text[blanks[-1].end() :].strip():
        blanks.pop()
    if len(blanks) != 1:
        return -1
    tail = text[blanks[0].end() :].strip()
    head = text[:begin]
    if len(tail) > _MAX_TAIL or is_question(head) or any(mark in head for mark in _ENDS):
        return -1
    if question < Question.ANNOUNCED and not announces_question(head):
        return -1
    end = blanks[0].start()
    is_alike = end_alike(text, [*bodies, strip(text, start, end)])
    return end if is_alike and _stands_alone(tail) else -1


def end_alike(text: str, bodies: Sequence[tuple[int, int]]) -> bool:
    """Return True if the last text has no more lines than others, and ends as another one does:
    else its last line may belong to what stands behind the list."""
    *num_lines, last = [text.count("\n", *body) for body in bodies]
    *endings, ending = [_ending(text, *body) for body in bodies]
    return last <= max(num_lines) and ending in endings


def has_odd_end(text: str, bodies: Sequence[tuple[int, int]]) -> bool:
    """Return True if the last text alone ends with a short line of its own: that may be a question
    or an instruction in the container of the list."""
    *others, last = [_has_short_end(text, *body) for body in bodies]
    return last and not any(others)


def _has_short_end(text: str, start: int, stop: int) -> bool:
    line_end = text.rfind("\n", start, stop)
    return line_end >= 0 and stop - line_end <= _MAX_SHORT


def _ending(text: str, start: int, stop: int) -> str:
    line = text[max(start, stop - _LAST_CHARS) : stop].rpartition("\n")[2]
    if not any(map(str.isalnum, line)):
        return line
    return "a" if line[-1].isalnum() else "." if line[-1] in _SENTENCE_ENDS else line[-1]


def is_question(text: str) -> bool:
    """Return True for a text that ends with a question mark or says that it is a question."""
    text = text.strip()
    if text.endswith(_ENDS):
        return True
    return any(_has_question_label(line) for line in text.splitlines()[-12:])


def _stands_alone(tail: str) -> bool:
    """Return True for a question that nothing precedes or answers: a paragraph of the last document
    may stand right above the question's line, or be a question with its answer."""
    first, *rest = filter(None, map(str.strip, tail.splitlines()))
    if not _has_question_label(first) or len(rest) > 1:
        return False
    return not rest or rest[0].endswith((*_ENDS, *_COLONS))


def _has_question_label(line: str) -> bool:
    if _ASKS.match(line) is None:
        return False
    words = re.findall(r"[^\W\d_]+", re.split("[:：]", line, maxsplit=1)[0].lower())
    return not _QUESTION_WORDS.isdisjoint(words)
