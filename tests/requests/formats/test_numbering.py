"""Numbers of a list: the words that cite them, and requests whose answers cannot be mapped."""

import random
from contextlib import suppress
from typing import Any

import pytest

from ragboost.config import Settings
from ragboost.requests.formats import LeftAloneError, find_format, make_formats
from ragboost.requests.formats.citations import CitationMap
from ragboost.requests.formats.frames import scan
from ragboost.requests.formats.groups import splice
from ragboost.requests.formats.numbering import (
    Numbering,
    TextBehind,
    is_answer_fixed,
    numbering_of,
)
from tests.requests.formats.frames.texts import DOCUMENTS, LEASE, RENT, numbered, prompt
from tests.requests.formats.joined_texts import paragraph
from tests.requests.formats.rewriting import user


@pytest.mark.parametrize(
    ("label", "cited"),
    [
        ("Document {}:", "[1], document 1, Documents 1 and 2, Source 1"),
        ("[{}]", "[1], Document 1"),
        ("### Passage {}:", "[1], Passage 1, Document 1"),
        ("【資料{}】", "【1】, 資料1, 資料 1"),
        ("Document[{}]:\n", "[1], Document 1"),
        ("दस्तावेज़ {}:", "[1], दस्तावेज़ 1, Document 1"),
    ],
)
def test_the_word_of_a_label_and_brackets_cite(label: str, cited: str) -> None:
    (group,) = scan(f"<context>\n{numbered(label)(DOCUMENTS)}\n</context>").groups
    numbering = numbering_of(group)
    assert numbering is not None
    word = numbering.words[0].lower() if numbering.words else ""
    is_synonym = word.isascii()  # of what models call a document
    mapped = numbering.answer_map([3, 0, 1, 2])
    assert mapped is not None
    for form in cited.split(", "):
        is_cited = not form[0].isalpha() or is_synonym or word in form.lower()
        assert (mapped.apply(form) != form) == bool(is_cited), form
    assert numbering.answer_map([0, 1, 2, 3]) is None


def test_the_tag_of_elements_that_count_is_a_word() -> None:
    texts = "\n".join(f'<source id="{n}">{text}</source>' for n, text in enumerate(DOCUMENTS, 1))
    (group,) = scan(texts).groups
    numbering = numbering_of(group)
    assert numbering is not None
    mapped = numbering.answer_map([1, 0, 2, 3])
    assert mapped is not None
    assert mapped.apply("[1], source 2, document 1") == "[2], source 1, document 2"


@pytest.mark.parametrize(
    ("question", "mapped"),
    [
        ("Who?\n1. Ada\n2. Bob\n3. Cy", "[2], source 1, document 2"),
        ("Step 1: read\nStep 2: write", "[2], source 1, document 2"),
        *[
            (f"{numbered(label)([f'{LEASE} {RENT}', RENT])}\n\nWho?", "[1], source 2, document 2")
            for label in (
                "{}.",
                "({})",
                "**{}.**",
                "### {}:\n",
                "- {}) ",
                "{}、",
                "Nr. {}\n",
                "{} - ",
            )
        ],
        ("My notes:\n[1] one thing\n[2] other thing", "[1], source 2, document 2"),
        ("[Doc_1] one thing\n[Doc_2] other thing", "[1], source 2, document 2"),
        ("Source 1: one thing\nSource 2: other thing", "[1], source 2, document 2"),
        ("Document 1: one thing\nDocument 2: other thing", "[1], source 2, document 1"),
    ],
)
def test_another_list_leaves_what_only_cites_the_first_one(question: str, mapped: str) -> None:
    first = f"<context>\n{numbered('Document {}:')([LEASE, RENT])}\n</context>\n\nWho?"
    texts = [("user", first), ("assistant", "Ada [1]."), ("user", question)]
    body = {"messages": [{"role": role, "content": text} for role, text in texts]}
    hit = find_format(make_formats(Settings()), body)
    assert hit is not None
    assert hit[1].numbering is not None
    answer = hit[1].numbering.answer_map([1, 0])
    cited = "[1], source 2, document 1"
    assert (answer.apply(cited) if answer is not None else cited) == mapped


@pytest.mark.parametrize(
    ("fields", "is_fixed"),
    [
        ({}, False),
        ({"logprobs": False, "response_format": {"type": "text"}, "tool_choice": "auto"}, False),
        ({"logprobs": 0}, True),
        ({"logprobs": True}, True),
        ({"echo": True}, True),
        ({"response_format": {"type": "json_object"}}, True),
        ({"guided_json": {}}, True),
        ({"tool_choice": {"type": "tool", "name": "cite"}}, True),
        ({"tool_choice": {"type": "auto"}}, False),
        ({"input": [], "text": {"format": {"type": "json_schema"}}, "store": False}, True),
        ({"input": [], "store": False}, False),
        ({"input": []}, True),
        ({"input": "Who?"}, True),
        ({"guided_choice": ["1", "2"]}, True),
    ],
)
def test_an_answer_whose_form_is_prescribed_cannot_be_mapped(
    fields: dict[str, Any], is_fixed: bool
) -> None:
    assert is_answer_fixed(fields) == is_fixed


@pytest.mark.parametrize("asked", ["Be brief.", "Cite [n]."])
def test_where_answers_are_not_seen_numbered_documents_stay(asked: str) -> None:
    body = user(prompt(f"{asked}\n\n{numbered('[{}]')([LEASE, RENT])}"))
    with pytest.raises(LeftAloneError):
        find_format(make_formats(Settings(), maps_answers=False), body)
    for fields, stays in (
        ({}, False),
        ({"logprobs": True}, True),
        ({"guided_choice": ["1"]}, True),
    ):
        hit = find_format(make_formats(Settings()), {**body, **fields})
        assert hit is not None
        assert hit[1].numbering is not None
        assert hit[1].numbering.stays == stays


def test_a_later_list_of_elements_with_numbers_leaves_documents_in_place() -> None:
    """Short ones are no documents, but an answer cites them by the same numbers."""
    write = '<source id="{}">{}</source>'
    listed = "\n".join(write.format(n, text) for n, text in enumerate([LEASE, RENT], 1))
    short = "\n".join(write.format(n, "yes") for n in (1, 2))
    for question, stays in ((short, True), ("Who signed?", False)):
        messages = [{"role": "system", "content": listed}, {"role": "user", "content": question}]
        hit = find_format(make_formats(Settings()), {"messages": messages})
        assert hit is not None
        assert hit[1].numbering is not None
        assert (hit[1].numbering.stays, hit[1].numbering.others.has_brackets) == (stays, stays)


@pytest.mark.parametrize(
    ("behind", "stays"),
    [
        (numbered("Document {} (a.py):\n")(["yes", "no"]), True),
        ("And this one:\n\nDocument 1 (north.py):\nThe rent is due.", True),
        ('{"id": "1", "content": " "}\n------\n{"id": "2", "content": "no"}', True),
        ("Who signed what document 2 says?", True),
        ("Who signed what [2] says, by source 1?", True),
        ("Who signed? Say so in brackets, for example [2].", False),
    ],
)
def test_labels_of_what_is_no_list_behind_the_documents_are_no_citations(
    behind: str, stays: bool
) -> None:
    listed = f"<context>\n{numbered('Document {}:')([LEASE, RENT])}\n</context>"
    hit = find_format(make_formats(Settings()), user(f"{listed}\n\n{behind}"))
    assert hit is not None
    assert hit[1].numbering is not None
    assert hit[1].numbering.stays == stays


@pytest.mark.parametrize("label", ["#{}", "{}:", "Document {}"])
def test_numbers_before_documents_that_traffic_shows_are_places_too(label: str) -> None:
    rng = random.Random(7)
    texts = [f"Ledger entry {at}: {RENT} {LEASE} Signed by clerk {at}." for at in range(8)]
    numberings = {}
    for numbers in ("map", "keep"):
        formats = make_formats(Settings(formats={"numbers": numbers}), learns=True)
        found = []
        for at in range(12):
            listed = numbered(label, separator="\n")(rng.sample(texts, 5))
            body = user(f"Answer from what follows.\n\n{listed}\n\nQuestion {at}: who signed?")
            with suppress(LeftAloneError):
                if (hit := find_format(formats, body)) is not None:
                    found.append(hit[1].numbering)
        numberings[numbers] = found
    assert numberings["keep"] == []
    numbering = numberings["map"][-1]
    assert numbering is not None
    mapped = numbering.answer_map([1, 0, 2, 3, 4])
    assert mapped is not None
    assert mapped.apply("See [1] and [2, 3].") == "See [2] and [1, 3]."


@pytest.mark.parametrize(
    ("question", "stays"),
    [("Who signed?", False), ("What else does [2] say?", True)],
)
def test_documents_that_traffic_has_shown_move_unless_what_follows_cites_one(
    question: str, stays: bool
) -> None:
    """The list whose last document has no certain end is not another one."""
    formats, rng = make_formats(Settings(), learns=True), random.Random(4)
    texts = [f"{paragraph(rng, n)} {paragraph(rng, n)}" for n in range(10)]
    stayed = []
    for n in range(20):
        asked = "Question: " + (question if n > 11 else f"Who signed, by part {n}?")
        listed = "\n".join(f"[{at}] {text}" for at, text in enumerate(rng.sample(texts, 4), 1))
        with suppress(LeftAloneError):
            hit = find_format(formats, user(f"Use these texts:\n{listed}\n\n{asked}"))
            assert hit is not None
            numbering = hit[1].numbering
            assert numbering is not None
            stayed.append(numbering.stays)
    assert len(stayed) > 8
    assert set(stayed[-8:]) == {stays}


@pytest.mark.parametrize(
    ("asked", "is_named"),
    [
        *(("What does number 2 say?", True), ("Only use 2 and 4.", True), ("1 or 3?", True)),
        *(
            ("Was steht in Nr. 2?", True),
            ("le document num\u00e9ro 3", True),
            ("[1, 2] + [3, 4]", True),
        ),
        *(("What happened in 3 weeks?", False), ("How much is 2.5 percent?", False)),
        *(("Who was king in 1066?", False), ("Is 2% enough?", False), ("Top 3 reasons?", False)),
    ],
)
def test_a_number_in_a_question_may_name_a_document(asked: str, *, is_named: bool) -> None:
    numbering = Numbering(("1", "2", "3", "4"), ("Document",), (" ",))
    assert numbering.is_named(asked, is_asked=True) == is_named


def test_a_context_that_ends_a_sentence_names_no_number() -> None:
    rules = "Use the context. 4. For questions about time, read the dates first."
    assert not Numbering(("1", "2", "3", "4"), ("Document",), (" ",)).is_named(rules)


@pytest.mark.parametrize(
    "style",
    [
        *("Cite as (1).", "Cite with [^1].", 'Cite: (cite index="1">.', "Cite with <sup>1</sup>."),
        *("Cite sources like {1}.", "Cite as [S1].", "Cite as [#1].", "Cite as [ref_1], please."),
        *(
            "Cite as <co: 1>text</co: 1>.",
            "<citation>1</citation> cites.",
            "Cite as [1](#source-1).",
        ),
        *("Add the number of the source as superscript.", "Cite the id of the source."),
        *("List the ids used, comma separated.", "Finish with USED: followed by the ids."),
        *("Return a table with columns: source no., quote.", "Start with the document number."),
        *("Insert a citation as '##i$$ ##j$$'.", "Put the id into <source_id>1</source_id>."),
        *(
            "Cite in this form:\nIt moved {n}.",
            '{"answer": "..", "source_id": 1} with the source id',
        ),
    ],
)
def test_documents_stay_where_a_form_is_asked_for_that_is_not_mapped(style: str) -> None:
    listed = numbered("Document {}:")([LEASE, RENT])
    for asked, stays in ((style, True), ("Cite as [1].", False)):
        hit = find_format(make_formats(Settings()), user(prompt(f"{asked}\n\n{listed}")))
        assert hit is not None
        assert hit[1].numbering is not None
        assert hit[1].numbering.stays == stays


@pytest.mark.parametrize(
    "style",
    [
        *("Cite as [n].", "Cite like [[1]], [1, 2] or 【1】.", "Cite as (Document 1) or [doc 2]."),
        *('Use citations [id] only when the <source> tag includes an id (e.g. <source id="1">).',),
        *(
            "Do not use XML tags when you cite.",
            "Cite the title of the document in parentheses.",
            "Put the document number in square brackets.",
            "Cite as [1] in at most (about) 50 words, in {language}.",
        ),
        *('Answer as JSON: {"answer": string, "sources": [numbers]}.', "Cite as [citation:x]."),
    ],
)
def test_documents_move_where_the_form_is_mapped(style: str) -> None:
    listed = "\n".join(
        f'<source id="{n}">{text}</source>' for n, text in enumerate([LEASE, RENT], 1)
    )
    hit = find_format(make_formats(Settings()), user(prompt(f"{style}\n\n{listed}")))
    assert hit is not None
    assert hit[1].numbering is not None
    assert not hit[1].numbering.stays


@pytest.mark.parametrize("later", ['You said "See [2]".', '{"ids": [1, 2]}', "Compare 1 and 2."])
def test_what_is_said_behind_the_first_answer_decides_nothing(later: str) -> None:
    """The engine has the list, and a client's `system` is no message with a history."""
    system = f"You help.\n\n<documents>\n{numbered('Document {}:')([LEASE, RENT])}\n</documents>"
    turns = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "Ada."}]
    for asked, stays in ((turns, False), ([{"role": "user", "content": "See 2."}], True)):
        last = [{"role": "user", "content": later}] if asked is turns else []
        body = {"model": "m", "max_tokens": 9, "system": system, "messages": [*asked, *last]}
        hit = find_format(make_formats(Settings()), body)
        assert hit is not None
        assert hit[1].numbering is not None
        assert hit[1].numbering.stays == stays


@pytest.mark.parametrize(
    ("asked", "sent"),
    [
        ("What does document 2 say?", "What does document 1 say?"),
        ("Source 1?", "Source 2?"),
        ("Zitiere Dokument 2.", "Zitiere Dokument 1."),
        ("Fix the claim in [1]: it ended in May.", "Fix the claim in [2]: it ended in May."),
        ("Translate: document 1 is wet.", "Translate: document 1 is wet."),
    ],
)
def test_a_later_question_calls_documents_as_answers_do(asked: str, sent: str) -> None:
    citations = CitationMap({"1": "2", "2": "1"}, words=("source",))
    text = TextBehind(("messages", 2, "content"), asked, is_question=True)
    assert splice(asked, text.edits(citations)) == sent
