"""Which numbers of a text name a document, and which are examples of how to cite."""

import re

import pytest

from ragboost.requests.citing.how_to_cite import naming_lines

_NAMES = [
    *("Always cite [1] first.", "Never cite [2].", "If unsure, cite [3].", "Prefer citing [1]."),
    *("Cite document 3 and explain it.", "Do not cite Document 4.", "Zitiere [1] nur im Notfall."),
    "Which citations does document 2 contain?",
    "Cite as [n]. Prefer Document 1.",
    "Document 1 is the contract. Cite your sources with [n].",
    "Use citations like [1]. Trust only [2].",
    "Cite sources as [n]; [1] is the user's own file.",
    "Prefer Document 1.",
]
_SAYS_HOW = [
    *("Cite as [1].", "Cite your sources with [1][2].", "Use inline citations, e.g. [1]."),
    *("Add citations [1], [2] behind each sentence.", "Zitiere Quellen als [1].", "引用格式：[1]"),
    "Cite like this: The lease runs two years [1]. It was signed in May [2].",
    "Example:\nThe lease runs two years [1].",
    'For example: "The lease ends [1]. The rent is due on the first of a month [2]."',
]


@pytest.mark.parametrize("text", _NAMES)
def test_a_sentence_that_names_a_document_is_no_example(text: str) -> None:
    named = [(at, line) for at, line in naming_lines(text) if re.search(r"\d", line)]
    assert named
    assert all(text[at : at + len(line)] == line for at, line in named)


@pytest.mark.parametrize("text", _SAYS_HOW)
def test_examples_name_nothing(text: str) -> None:
    assert not [line for _, line in naming_lines(text) if re.search(r"\d", line)]
