"""Documents in the text of messages: what is found, what moves, and what is said about it."""

import pytest
from ragboost.formats.text import find_groups

from ragboost.booster.booster import Booster
from ragboost.config import Settings
from tests.formats.rewriting import boost, find, reorder, text_of, user

ANTHROPIC = """<documents>
<document index="1">
<source>lease.pdf</source>
<document_content>
The lease was signed by Ada.
</document_content>
</document>
<document index="2">
<source>memo.txt</source>
<document_content>
Rent is due on the first.
</document_content>
</document>
</documents>

Who signed?"""

LLAMA_QA = """Context information is below.
---------------------
page_label: 4
file_path: docs/lease.pdf

The lease was signed by Ada.

A second paragraph of it.

page_label: 9
file_path: docs/memo.pdf

Rent is due on the first.
---------------------
Given the context information and not prior knowledge, answer the query.
Query: Who signed?
Answer: """

LLAMA_SUMMARY = """Context information from multiple sources is below.
---------------------
file_path: a.txt

The lease was signed by Ada.
file_path: b.txt

Rent is due on the first.
---------------------
Given the information from multiple sources and not prior knowledge, answer the query.
Query: Who signed?
Answer: """

LLAMA_CHAT = """You help.
Use the context information below to assist the user.
--------------------
file_path: a.txt

The lease was signed by Ada.

file_path: b.txt

Rent is due on the first.
--------------------
"""

LLAMA_CITATIONS = """Please provide an answer based solely on the provided sources. For example:
Source 1:
The sky is red in the evening and blue in the morning.
Source 2:
Water is wet when the sky is red.
Query: When is water wet?
Answer: Water will be wet when the sky is red [2], which occurs in the evening [1].
Now it's your turn. Below are several numbered sources of information:
------
Source 1:
The lease was signed by Ada.

Source 2:
Rent is due on the first.
------
Query: Who signed?
Answer: """

LANGCHAIN_CHAT = """Use the following pieces of context to answer the user's question.
If you don't know the answer, just say that you don't know.
----------------
Source: {'file': 'lease.pdf'}
Content: The lease was signed by Ada.

It has a second paragraph.

Source: {'file': 'memo.pdf'}
Content: Rent is due on the first."""

LANGCHAIN_STUFF = """Use the following pieces of context to answer the question at the end.

[1] The lease was signed by Ada.

It has a second paragraph.

[2] Rent is due on the first.

Question: Who signed?
Helpful Answer:"""

# The text, where the documents begin, and a part of each document.
SHAPES = {
    "anthropic": (ANTHROPIC, "<document index=", "lease.pdf", "memo.txt"),
    "llama_index question": (LLAMA_QA, "page_label: 4", "second paragraph", "Rent is due"),
    "llama_index summary": (LLAMA_SUMMARY, "file_path: a", "signed by Ada", "Rent is due"),
    "llama_index chat": (LLAMA_CHAT, "file_path: a", "signed by Ada", "Rent is due"),
    "llama_index citations": (
        LLAMA_CITATIONS,
        "Source 1:\nThe lease",
        "signed by Ada",
        "Rent is due",
    ),
    "langchain chat": (LANGCHAIN_CHAT, "Source: {", "second paragraph", "Rent is due"),
    "langchain stuff": (LANGCHAIN_STUFF, "[1] The", "second paragraph", "Rent is due"),
}


@pytest.mark.parametrize("name", SHAPES)
def test_documents_of_a_known_frame_are_found_and_moved(name: str) -> None:
    text, beginning, first, second = SHAPES[name]
    found = find(user(text))
    assert found is not None
    assert len(found.documents) == 2
    moved = text_of(reorder(user(text), [1, 0]))
    assert moved.index(second) < moved.index(first)
    front = text[: text.index(beginning)]
    assert moved.startswith(front)


@pytest.mark.parametrize("name", SHAPES)
def test_text_behind_the_frame_stays_behind_documents_and_hints(name: str) -> None:
    text = SHAPES[name][0]
    moved = text_of(reorder(user(text), [1, 0]))
    tail = text[text.rindex("Rent is due on the first.") :].split("\n")[-1]
    assert "Rent is due" in tail or moved.endswith(tail)
    assert moved.index("by relevance") > moved.index("signed by Ada")


@pytest.mark.parametrize("name", SHAPES)
def test_a_request_with_another_order_is_sent_with_the_same_bytes(name: str) -> None:
    text = SHAPES[name][0]
    booster = Booster()
    first = text_of(boost(booster, user(text)))
    second = text_of(boost(booster, user(retrieved_in_another_order(text))))
    end = max(first.index("signed by Ada"), first.index("Rent is due"))
    assert second[:end] == first[:end]


def retrieved_in_another_order(text: str) -> str:
    """The same frame around the same two documents, as its framework would write them."""
    found = find(user(text))
    assert found is not None
    one, two = (document.key[:8] for document in found.documents)
    moved = str(text_of(reorder(user(text), [1, 0], Settings(hints={"order": False}))))
    front, note, behind = moved.partition("\n\nCite documents by their numbers: ")
    if note:
        behind = behind[behind.index(".") + 1 :]
    return front.replace(two, "1").replace(one, "2") + behind


def test_attributes_and_inner_tags_stay_with_their_document() -> None:
    text = (
        '<documents>\n<document id="b7" title="Lease"><p>4</p> signed &amp; sealed</document>\n'
        "<document id='x' title='a > b'>other</document>\n</documents> Why?"
    )
    moved = text_of(reorder(user(text), [1, 0]))
    assert moved.startswith(
        "<documents>\n<document id='x' title='a > b'>other</document>\n"
        '<document id="b7" title="Lease"><p>4</p> signed &amp; sealed</document>\n</documents>'
    )
    assert '"Lease" >> "a > b"' in moved
    assert moved.endswith(" Why?")


def test_a_number_becomes_the_documents_own_name_and_a_note_keeps_citations_right() -> None:
    alpha = "alpha is the first of them all, and it was so from the beginning"
    beta = "beta is the second, which comes after alpha in every list we know"
    text = f"Document 1: {alpha}\n\nDocument 2: {beta}\n\nQuestion: which?"
    found = find(user(text))
    assert found is not None
    one, two = (document.key[:8] for document in found.documents)
    moved = text_of(reorder(user(text), [1, 0]))
    assert moved == (
        f"Document {two}: {beta}\n\nDocument {one}: {alpha}\n\n"
        f"Cite documents by their numbers: Document {one} is Document 1, "
        f"Document {two} is Document 2.\n"
        f"Documents by relevance, most relevant first: Document {one} >> Document {two}\n\n"
        "Question: which?"
    )


def test_a_document_has_the_same_bytes_under_any_number() -> None:
    booster = Booster()
    documents = ["alpha is first", "beta is second", "gamma is third"]

    def prompt(order: list[int]) -> str:
        blocks = [f"[{at}] {documents[i]}" for at, i in enumerate(order, 1)]
        text = "<context>\n" + "\n".join(blocks) + "\n</context>\nWhich?"
        return str(text_of(boost(booster, user(text))))

    first, second = prompt([0, 1]), prompt([2, 1, 0])
    end = first.index("\n</context>")
    assert second[:end] == first[:end]


@pytest.mark.parametrize("label", ["Document {}:", "[Doc_{}]", "Source {}:", "[Document {}]"])
def test_labels_at_the_beginning_of_lines_are_numbered_documents(label: str) -> None:
    blocks = [f"{label.format(i)} text number {i}{' and on' * 5}\n\n" for i in (1, 2, 3)]
    found = find(user("".join(blocks) + "Which one is it?"))
    assert found is not None
    assert len(found.documents) == 3


def test_labels_that_are_ids_stay_as_they_are() -> None:
    text = "[Doc_17] alpha is first\n\n[Doc_3] beta is second\n\nWhich?"
    moved = text_of(reorder(user(text), [1, 0]))
    assert moved.startswith("[Doc_3] beta is second\n\n[Doc_17] alpha is first\n\n")
    assert "[Doc_17] >> [Doc_3]" in moved
    assert "Cite" not in moved


def test_a_last_document_without_a_plain_end_keeps_its_place() -> None:
    text = (
        "[Document 1] a one\n\nmore\n\n[Document 2] b two\n\nmore\n\n[Document 3] c three\n\nmore"
        "\n\nAnd so who signed?"
    )
    found = find(user(text))
    assert found is not None
    assert len(found.documents) == 2
    moved = text_of(reorder(user(text), [1, 0]))
    assert moved.endswith("[Document 3] c three\n\nmore\n\nAnd so who signed?")


def test_a_question_line_ends_the_last_document() -> None:
    text = "[Doc 1] a one\n\nmore\n\n[Doc 2] b two\n\nmore\nQuestion: who?"
    moved = text_of(reorder(user(text), [1, 0]))
    assert moved.endswith("\nQuestion: who?")
    assert moved.index("b two\n\nmore") < moved.index("a one")


def test_numbered_documents_keep_their_places_if_so_configured() -> None:
    settings = Settings(formats={"numbers": "keep"})
    assert find(user("[Doc 1] a b\n\n[Doc 2] c d\n\nWhich?"), settings) is None
    assert find(user(ANTHROPIC), settings) is None


def test_registered_delimiters_are_found() -> None:
    settings = Settings(formats={"delimiters": [{"name": "kb", "start": "<<<KB", "end": "KB>>>"}]})
    text = "Facts:\n<<<KB one\nKB>>>\n<<<KB two\nKB>>>\nWhich?"
    assert find(user(text)) is None
    moved = text_of(reorder(user(text), [1, 0], settings))
    assert moved.startswith("Facts:\n<<<KB two\nKB>>>\n<<<KB one\nKB>>>\n\nDocuments by relevance")


def test_a_registered_separator_divides_what_stands_between_the_marks() -> None:
    stuff = {
        "name": "stuff",
        "start": "answer the question at the end.\n\n",
        "end": "\n\nQuestion:",
        "separator": "\n\n",
    }
    settings = Settings(formats={"delimiters": [stuff]})
    text = "Use context to answer the question at the end.\n\none 1\n\ntwo 2\n\nQuestion: which?"
    moved = text_of(reorder(user(text), [1, 0], settings))
    assert moved.startswith("Use context to answer the question at the end.\n\ntwo 2\n\none 1\n\n")
    assert moved.endswith("\n\nQuestion: which?")


def test_hints_may_stand_behind_the_question() -> None:
    settings = Settings(hints={"position": "after_question"})
    text = "<doc>one</doc><doc>two</doc> Which?"
    moved = text_of(reorder(user(text), [1, 0], settings))
    assert moved.startswith("<doc>two</doc><doc>one</doc> Which?\n\nDocuments by relevance")


def test_without_order_hints_only_blocks_move() -> None:
    settings = Settings(hints={"order": False})
    moved = text_of(reorder(user("<doc>one</doc> <doc>two</doc> Which?"), [1, 0], settings))
    assert moved == "<doc>two</doc> <doc>one</doc> Which?"


def test_another_text_before_the_documents_is_another_prefix() -> None:
    booster = Booster()
    booster_body = user("<doc>two</doc> <doc>one</doc>\nWhich?")
    assert boost(booster, booster_body) == booster_body
    asked_first = user("Why? <doc>one</doc> <doc>two</doc>")
    assert boost(booster, asked_first) == asked_first
    same_front = user("<doc>one</doc> <doc>two</doc>\nWhy?")
    assert text_of(boost(booster, same_front)).startswith("<doc>two</doc> <doc>one</doc>")


@pytest.mark.parametrize("num_before", [0, 10, 31, 32, 33, 100, 2000])
def test_documents_are_found_among_many_other_tags(num_before: int) -> None:
    documents = [f"<document>Text {i} <b>bold</b> {'words ' * 300}</document>" for i in range(40)]
    before = "<br>" * num_before
    text = f"{before}{'words ' * 5000}\n" + "\n".join(documents)

    (group,) = find_groups(text)

    assert group.identities() == documents


def test_nodes_of_several_loaders_keep_their_metadata() -> None:
    """A page has a label, a text file has none."""
    text = LLAMA_QA.replace("page_label: 9\n", "title: Memo\n", 1)
    found = find(user(text))
    assert found is not None
    assert [d.text.partition("\n")[0] for d in found.documents] == ["page_label: 4", "title: Memo"]
    assert "Memo\nfile_path: docs/memo.pdf\n\nRent" in text_of(reorder(user(text), [1, 0]))
