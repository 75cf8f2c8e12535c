"""Tell a question that stands alone behind a list of documents from the end of the last one."""

import re
from collections.abc import Sequence

from ragboost.requests.formats.frames.spans import strip

_BLANK_LINE = re.compile(r"\n[ \t\r]*\n")
_MAX_TAIL = 2000
_LAST_CHARS = 80  # of a text, which tell how it ends
_QUESTIONS = (
    "question query user input request task instruction frage pregunta domanda pergunta вопрос "
    "问题 問題 用户问题 提问 問い 質問 질문 "
)
_ASKS = re.compile(r"[#* ]{0,6}(?:[^\W\d_]{1,12} ){0,2}[^\W\d_]{1,12}[*]{0,2}[:：]")
_ENDS = ("?", "？", "؟")
_SENTENCE_ENDS = ".!?。！？؟…)）\"'”’»"
_QUESTION_WORDS = frozenset(_QUESTIONS.split())


def end_before_question(
    text: str, begin: int, start: int, bodies: Sequence[tuple[int, int]]
) -> int:
    """Return the end of the last document, where a question stands alone behind it; -1 if that is
    not certain.

    Args:
        begin: where the list begins.
        start: where the last document's text begins.
        bodies: where the texts of the others are, which blank lines separate.
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
    if len(tail) > _MAX_TAIL or is_question(head):
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
    first, line_end, _ = tail.partition("\n")
    if not line_end:
        return is_question(tail)
    return _has_question_label(first) and tail.endswith((*_ENDS, ":", "：", "**"))


def _has_question_label(line: str) -> bool:
    if _ASKS.match(line) is None:
        return False
    words = re.findall(r"[^\W\d_]+", re.split("[:：]", line, maxsplit=1)[0].lower())
    return not _QUESTION_WORDS.isdisjoint(words)
