"""Score a text answer against right answers: exact match, word F1, containment.

Texts are compared as SQuAD does: without case, articles and punctuation.
"""

import re
import string
from collections import Counter
from collections.abc import Sequence

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def exact_match(answer: str, right: Sequence[str]) -> float:
    """Return 1 if the answer is one of the right ones, else 0."""
    got = _words(answer)
    return float(any(got == _words(other) for other in right))


def word_f1(answer: str, right: Sequence[str]) -> float:
    """Return the highest F1 of common words over the right answers, 0 to 1."""
    got = _words(answer)
    return max((_f1(got, _words(other)) for other in right), default=0.0)


def contains(answer: str, right: Sequence[str]) -> float:
    """Return 1 if one of the right answers occurs in the answer, as whole words, else 0."""
    got = f" {' '.join(_words(answer))} "
    return float(any(words and f" {' '.join(words)} " in got for words in map(_words, right)))


def _f1(got: list[str], want: list[str]) -> float:
    if not got or not want:
        return float(got == want)
    same = sum((Counter(got) & Counter(want)).values())
    return 2 * same / (len(got) + len(want))


def _words(text: str) -> list[str]:
    return _ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split()
