"""For random contents from the marks of all frames: no document is lost, doubled or cut."""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ragboost.config import FrameSettings
from ragboost.requests.formats.frames import Scan, scan
from ragboost.requests.formats.groups import splice
from ragboost.requests.formats.instructions.questions import Question
from tests.requests.formats.frames.texts import LEASE, NOISE, PETS, RENT, Write, elements, numbered

MARKS = [
    "<document>",
    "</document>",
    '<document index="1">',
    "</documents>",
    "<doc>x</doc>",
    "`</document>`",
    "<b>",
    "Document 1: a b",
    "\nDocument 2: ",
    "\n\n[3] c d",
    "\n[Doc_1] e f",
    "[END CONTEXT 1]",
    "\n[CONTEXT 2]:\n",
    "Source: {}\nContent: g",
    "\n---------------------\n",
    "\n=====\n",
    "\nfile_path: a\n\n",
    "\n```\n",
    "\na.py\n```python\n",
    "[1] h i\n[2] j k",
    "\n</context>\n",
    '[{"text": "l"}, {"text": "m"}]',
    "Document(page_content='n')",
    "'), Document(page_content='",
    "\n\nQuestion: o?",
    "\n\nAnswer: p",
    "\n- q",
    "\n## r\n",
    "\n├── Title: s\n",
    "Documents by relevance, most relevant first: 1 >> 2",
    "Cite documents by their numbers: 1 is 2.",
    "Please refer to the document that begins with",
    "\ud800",
    "\u2028",
    "\x00",
    "é\U0001f600\u202e",
    "\r\n",
    "\n\n",
    " ",
    '"',
    "'",
    "\\",
    "<<<",
    ">>>",
]
ANGLE = FrameSettings(name="angle", start="<<<", end=">>>")
PLAIN_TEXTS = st.sampled_from((LEASE, RENT, PETS, NOISE))
HOSTILE = st.tuples(
    PLAIN_TEXTS, st.lists(st.sampled_from(MARKS) | st.text(max_size=8), max_size=5), PLAIN_TEXTS
).map(lambda parts: f"{parts[0]} {''.join(parts[1])} {parts[2]}")
SAFE = st.text(
    st.characters(exclude_characters="<>[]\n\r\x85\u2028\u2029'\"\\", exclude_categories=["Cs"])
).map(lambda text: f"{LEASE} {text} {RENT}")


def contexts(documents: Sequence[str]) -> str:
    blocks = [f"[CONTEXT {i}]:\n{text}\n[END CONTEXT {i}]" for i, text in enumerate(documents)]
    return "\n\n".join(blocks)


def nodes(documents: Sequence[str]) -> str:
    listed = "\n\n".join(f"page: 1\nfile_path: f\n\n{text}" for text in documents)
    return f"---------------------\n{listed}\n---------------------"


def printed(documents: Sequence[str]) -> str:
    return f"[{', '.join(f'Document(page_content={text!r})' for text in documents)}]"


def files(documents: Sequence[str]) -> str:
    return "\n\n".join(f"f.py\n```\n{text}\n```" for text in documents)


def within(write: Write) -> Write:
    return lambda documents: f"<context>\n{write(documents)}\n</context>"


Spell = Callable[[str], str]  # how a document's text stands in its frame
FRAMES: dict[str, tuple[Write, Spell]] = {
    "document": (elements("document"), str),
    "kb-entry": (elements("kb-entry"), str),
    "Document n:": (numbered("Document {}:"), str),
    "[n] in a container": (within(numbered("[{}]")), str),
    "contexts": (contexts, str),
    "nodes": (nodes, str),
    "repr": (printed, lambda text: repr(text)[1:-1]),
    "json": (json.dumps, lambda text: json.dumps(text)[1:-1]),
    "files": (files, str),
    "angle": (lambda documents: "\n".join(f"<<<{text}>>>" for text in documents), str),
}
NAMES = st.sampled_from(sorted(FRAMES))
LISTS = st.lists(HOSTILE, min_size=2, max_size=4)
RANDOM = st.randoms(use_true_random=False)


def around(listed: str) -> str:
    return f"Answer from what follows.\n\n{listed}\n\nQuestion: who signed?"


def scanned(text: str) -> Scan:
    return scan(text, frames=[ANGLE], question=Question.ANNOUNCED)


def shuffled(text: str, rng: Any) -> str:
    edits = []
    for group in scanned(text).groups:
        order = list(range(len(group.blocks)))
        rng.shuffle(order)
        edits.append(group.reordered(order))
    return str(splice(text, edits))


@given(NAMES, LISTS, RANDOM)
@settings(max_examples=400, deadline=None)
def test_documents_with_marks_in_them_stay_whole(name: str, documents: list[str], rng: Any) -> None:
    # The next label, behind the same blank line as the others, is one more document.
    assume(name != "[n] in a container" or len(documents) > 2 or "\n\n[3]" not in documents[1])
    write, spell = FRAMES[name]
    text = around(write(documents))
    new = shuffled(text, rng)
    for document, num in Counter(map(spell, map(str.strip, documents))).items():
        assert new.count(document) >= num
    assert Counter(new) == Counter(text)
    assert new.startswith("Answer from what follows.\n\n")
    assert new.endswith("\n\nQuestion: who signed?")


@given(NAMES, LISTS)
@settings(max_examples=200, deadline=None)
def test_the_order_in_which_documents_were_found_is_the_same_bytes(
    name: str, documents: list[str]
) -> None:
    text = around(FRAMES[name][0](documents))
    edits = [group.reordered(range(len(group.blocks))) for group in scanned(text).groups]
    assert splice(text, edits) == text


@given(NAMES, st.lists(SAFE, min_size=2, max_size=5, unique=True), RANDOM)
@settings(max_examples=200, deadline=None)
def test_what_was_written_is_read_again(name: str, documents: list[str], rng: Any) -> None:
    text = around(FRAMES[name][0](documents))
    (group,) = scanned(text).groups
    order = list(range(len(documents)))
    rng.shuffle(order)
    (again,) = scanned(str(splice(text, [group.reordered(order)]))).groups
    assert [b.text for b in again.blocks] == [group.blocks[i].text for i in order]
    back = [order.index(i) for i in range(len(order))]
    assert splice(again.value, [again.reordered(back)]) == text


@given(st.lists(st.sampled_from(MARKS) | st.text(max_size=8), max_size=30).map("".join), RANDOM)
@settings(max_examples=400, deadline=None)
def test_no_character_of_any_text_is_lost(text: str, rng: Any) -> None:
    for is_tool in (False, True):
        for group in scan(
            text, frames=[ANGLE], is_tool=is_tool, question=Question(2 * (not is_tool))
        ).groups:
            order = list(range(len(group.blocks)))
            rng.shuffle(order)
            new = str(splice(text, [group.reordered(order)]))
            assert Counter(new) == Counter(text)
            for block in group.blocks:
                assert block.text is None or block.text in new or group.is_json
