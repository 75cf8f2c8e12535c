"""Which of several lists is the frame, and how much work a scan is."""

import sys
from types import FrameType

import pytest

from ragboost.requests.formats.frames import scan
from ragboost.requests.formats.instructions.questions import Question
from tests.requests.formats.frames.texts import (
    LEASE,
    NOISE,
    PETS,
    RENT,
    elements,
    numbered,
    prompt,
    scan_prompt,
    texts_of,
)

NESTED = [
    elements("doc")([LEASE, RENT]),
    numbered("[{}]")([LEASE, RENT]),
    f'[{{"text": "{LEASE}"}},\n{{"text": "{RENT}"}}]',
    f"Source: a\nContent: {LEASE}\n\nSource: b\nContent: {RENT}",
    f"a.py\n```\n{LEASE}\n```\n\nb.py\n```\n{RENT}\n```",
    f"-----\nfile_path: a\n\n{LEASE}\n\nfile_path: b\n\n{RENT}\n-----",
]


@pytest.mark.parametrize("inner", NESTED)
def test_the_outermost_list_is_the_frame(inner: str) -> None:
    documents = [PETS, inner, NOISE, inner]
    assert texts_of(scan(prompt(elements("passage")(documents)))) == [documents]
    closed = "\n\n".join(f"[CONTEXT {i}]:\n{t}\n[END CONTEXT {i}]" for i, t in enumerate(documents))
    assert texts_of(scan(prompt(closed))) == [documents]


@pytest.mark.parametrize("inner", NESTED)
def test_what_a_single_document_contains_is_no_list(inner: str) -> None:
    for tag in ("document", "file_content", "passage"):
        assert scan(prompt(f'<{tag} path="a.txt">\n{inner}\n</{tag}>')).groups == ()


def test_lists_one_after_the_other_are_several() -> None:
    tagged, json = elements("doc")([LEASE, RENT]), f'["{PETS}", "{NOISE}"]'
    assert texts_of(scan(f"{tagged}\n\nAnd:\n{json}\n\nWhy?")) == [[LEASE, RENT], [PETS, NOISE]]


def test_lists_that_cross_each_other_are_ambiguous() -> None:
    text = f"<doc>{LEASE}</doc>\n<doc>{RENT}\n<file>{PETS}</doc></file>\n<file>{NOISE}</file>"
    result = scan(text)
    assert result.groups == ()
    assert "overlap" in result.problem


def test_an_uncertain_list_hides_what_it_contains() -> None:
    inner = elements("doc")([LEASE, RENT])
    text = f"<source>{inner}</source>\n<source>{PETS} </source> said {NOISE}</source>"
    result = scan(text)
    assert (result.groups, result.frame) == ((), "<source>")


def test_line_ends_of_windows_are_found_and_kept() -> None:
    for text in (
        prompt(elements("doc")([LEASE, RENT])),
        prompt(numbered("[Document {}]")([LEASE, RENT])),
        f"<context>\n{numbered('[{}]')([LEASE, RENT])}\n</context>",
    ):
        assert texts_of(scan_prompt(text.replace("\n", "\r\n"))) == [[LEASE, RENT]]


ODD = [
    "id: \n",
    "file_path: a\n\n",
    "Context information is below.\n-----\n" + "id: \n",
    "<a",
    "<a>",
    "</a>",
    "<a></a>",
    "<doc>\n",
    '<doc a="',
    "[1",
    "[1] ",
    "[1]\n",
    "\n[1] a\n\n",
    "Document 1:\n",
    '{"',
    "[",
    '["a",\n',
    "- ",
    "-----\n",
    "=====\nID: 1\n",
    "```\n",
    "a.py\n```\n",
    "Document(page_content='",
    "Source: a\nContent: b\n\n",
    "\n\n\n ",
    "\u2028\r",
]


@pytest.mark.parametrize("is_tool", [False, True])
@pytest.mark.parametrize("mark", ODD)
def test_the_work_grows_no_faster_than_the_text(mark: str, is_tool: bool) -> None:
    short, long = (num_calls(mark * num, is_tool=is_tool) for num in (500, 4000))
    assert long < 9 * short + 200


def num_calls(text: str, *, is_tool: bool) -> int:
    """Count the calls of functions that a scan makes, those of the interpreter included."""
    num = 0

    def count(_frame: FrameType, event: str, _arg: object) -> None:
        nonlocal num
        num += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        scan(text, is_tool=is_tool, question=Question(2 * (not is_tool)))
    finally:
        sys.setprofile(before)
    return num


@pytest.mark.parametrize(
    "documents",
    [
        [f"{LEASE}\n<doc>", f"{RENT}</doc>\n<doc>", f"{PETS}</doc>"],
        [f"{LEASE} Document(page_content='a'), Document(page_content='", f"b') {RENT}", PETS],
        [f"{LEASE}\na.py\n```\n{RENT}", f"{RENT}\n```\nb.py\n```\n{PETS}", f"{PETS}\n```"],
    ],
)
def test_marks_that_begin_in_one_document_and_end_in_another_move_nothing(
    documents: list[str],
) -> None:
    text = prompt(numbered("Document {}:")(documents))
    for group in scan_prompt(text).groups:
        assert [block.text for block in group.blocks] == documents
