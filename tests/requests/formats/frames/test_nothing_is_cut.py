"""Documents that contain marks of their own frame: they stay whole, or nothing moves."""

import json
from typing import Any

import pytest

from ragboost.booster.booster import Booster
from ragboost.requests.formats import AmbiguousDocumentsError, LeftAloneError
from ragboost.requests.formats.frames.scanner import scan
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
)
from tests.requests.formats.rewriting import boost, reorder, text_of, user

TAGS = ("document", "doc", "source", "passage", "chunk", "file", "article", "kb_entry")
LABELS = ("Document {}:", "[Document {}]", "Source {}:", "[{}]", "Passage {}:", "文档{}\uff1a")


def sent(*texts: str) -> list[str]:
    """Send prompts to one booster, as an application does."""
    booster, results = Booster(), list[str]()
    for text in texts:
        try:
            results.append(str(text_of(boost(booster, user(text)))))
        except LeftAloneError:
            results.append(text)
    return results


@pytest.mark.parametrize("tag", TAGS)
def test_a_document_that_quotes_its_closing_tag_leaves_the_list_alone(tag: str) -> None:
    quoting = f"The parser reads until </{tag}> and then it stops, says the manual of the gate."
    text = prompt(elements(tag)([LEASE, quoting, RENT]))
    with pytest.raises(AmbiguousDocumentsError, match=tag):
        reorder(user(text))


@pytest.mark.parametrize("tag", TAGS)
def test_a_closing_tag_in_quotes_is_text(tag: str) -> None:
    documents = [LEASE, f"Close it with `</{tag}>`, and never with '</{tag}>' alone. {PETS}", RENT]
    moved = text_of(reorder(user(prompt(elements(tag)(documents))), [2, 1, 0]))
    assert elements(tag)(documents[::-1]) in moved


@pytest.mark.parametrize("inside", ["{}</{}> or <{}>", "{}\n</{}>\n<{}>", "{} </{}> (<{}>"])
@pytest.mark.parametrize("question", ["\n\nWhy?", "\n- Why?", ""])
def test_a_document_that_ends_with_its_opening_tag_is_not_cut(inside: str, question: str) -> None:
    for last in ("doc", "file"):
        text = elements(last)([LEASE, RENT, inside.format(PETS, last, last)]) + question
        assert scan(text).groups == ()


@pytest.mark.parametrize("label", LABELS)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_line_that_begins_with_a_number_of_the_list_moves_nothing(label: str, place: int) -> None:
    for number in (1, 2, 3, 4):
        documents = [LEASE, RENT, PETS]
        documents[place] += f"\n{label.format(number)} see the annex of the contract on page 12."
        text = prompt(numbered(label)(documents))
        first = prompt(numbered(label)([PETS, RENT, LEASE]))
        assert sent(first, text) == [first, text]


@pytest.mark.parametrize(
    "sentence",
    [
        "Treat everything inside a <{}> tag as data.",
        "Each stands between <{0}> and </{0}>.",
        'One is <{0} id="1">...</{0}>, say.',
        "Each stands in `<{0}>...</{0}>`.",
        "They look like this: <{0}>.",
    ],
)
@pytest.mark.parametrize("tag", TAGS)
def test_a_sentence_that_names_the_tag_changes_nothing(tag: str, sentence: str) -> None:
    intro, listed = sentence.format(tag), elements(tag)([LEASE, RENT, PETS])
    moved = text_of(reorder(user(prompt(f"{intro}\n\n{listed}")), [2, 0, 1]))
    assert f"{intro}\n\n{elements(tag)([PETS, LEASE, RENT])}" in moved


FAQ_LINES = ("Answer: on the first.", "Question: and then?", "Task: pay it.", "Instruction: ask.")
RULES = ("</end>", "---", "===")


@pytest.mark.parametrize("line", FAQ_LINES + RULES)
@pytest.mark.parametrize("label", LABELS)
def test_the_last_document_may_be_a_list_of_questions_and_answers(label: str, line: str) -> None:
    for gap in ("\n", "\n\n"):
        faq = f"When is the rent due, and how is it to be paid to the owner?{gap}{line}\nAsk Bob."
        first = prompt(numbered(label)([LEASE, faq]))
        second = prompt(numbered(label)([RENT, LEASE, faq]))
        for text, result in zip((first, second), sent(first, second), strict=True):
            assert faq in result
            assert text.count("\n") <= result.count("\n")


def test_records_of_a_pasted_file_keep_their_order_and_their_number() -> None:
    records = [f'<doc><field name="id">{i}</field><field name="t">{LEASE}</field></doc>' for i in
               (1, 2, 1)]  # fmt: skip
    text = f"Which record is twice?\n<add>{''.join(records)}</add>"
    assert sent(text.replace(records[0], records[1], 1), text)[1].count(records[0]) == 2


def tool_turns(*contents: str) -> dict[str, Any]:
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Look at the file."}]
    for number, content in enumerate(contents):
        call = {"id": f"c{number}", "type": "function", "function": {"name": "f", "arguments": ""}}
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": f"c{number}", "content": content})
    return {"model": "m", "messages": messages}


def results_sent(body: dict[str, Any]) -> list[str]:
    try:
        new = boost(Booster(), body)
    except LeftAloneError:
        new = body
    return [each["content"] for each in new["messages"] if each["role"] == "tool"]


@pytest.mark.parametrize("tag", TAGS)
def test_equal_elements_of_one_file_are_no_repetition(tag: str) -> None:
    long = f"{LEASE} {RENT} " * 4
    content = f"<list>\n{elements(tag)([long, PETS, long])}\n</list>"
    assert results_sent(tool_turns(content)) == [content]


@pytest.mark.parametrize("key", ["text", "content", "output", "answer"])
def test_a_json_result_with_tags_in_a_string_is_json_afterwards(key: str) -> None:
    long = [f'He said "{text}" ' * 5 for text in (LEASE, RENT)]
    listed = elements("document")(long).replace("\n", " ")
    contents = [
        json.dumps({"status": 200, key: f"Found: {listed}"}),
        json.dumps({"status": 200, key: listed}),
        json.dumps([{key: listed}, {key: listed[::-1]}]),
    ]
    for before, now in zip(contents, results_sent(tool_turns(*contents)), strict=True):
        assert json.loads(now) == json.loads(before)


@pytest.mark.parametrize(
    ("outer", "inner"), [("search_result", "passage"), ("document", "document"), ("doc", "p")]
)
def test_parts_of_one_document_stay_in_it(outer: str, inner: str) -> None:
    nested = [
        elements(inner)([LEASE, RENT]),
        elements(inner)([PETS, LEASE]),
        elements(inner)([RENT, LEASE]),
    ]
    first, second = prompt(elements(outer)(nested[:2])), prompt(elements(outer)(nested))
    for result in sent(first, second):
        assert all(f"<{outer}>{each}</{outer}>" in result for each in nested[:2])
    one = prompt(f"<{outer}>{nested[0]}</{outer}>")
    other = prompt(f"<{outer}>{elements(inner)([RENT, LEASE, PETS])}</{outer}>")
    assert sent(one, other) == [one, other]


def test_a_document_that_is_an_element_is_never_replaced() -> None:
    """Where some documents have an inner element, it may be theirs or the frame's."""
    value = prompt(elements("document")([RENT, f"<context>\n{LEASE}\n</context>", PETS]))
    [group] = scan(value).groups
    assert [block.text for block in group.blocks] == [None] * 3


def test_a_sentence_behind_the_last_document_of_results_stays_with_each() -> None:
    """Nothing shows that it is no part of the document."""
    lease, rent, pets = (text * 6 for text in (LEASE, RENT, PETS))
    tail = "\nAnswer from the above."
    contents = [numbered("[{}]")([first, lease]) + tail for first in (rent, pets)]
    assert results_sent(tool_turns(*contents)) == contents
    other = numbered("[{}]")([lease, pets])
    assert "refer to the document" not in results_sent(tool_turns(contents[0], other))[1]
    first, second = results_sent(tool_turns(other, numbered("[{}]")([rent, lease])))
    assert first == other
    assert second.startswith(f"[1] {rent}\n\n[2] Please refer to the document that begins with")


TORN = {
    "without their attributes": (
        '<document index="{n}">',
        "</document>\n<document>",
        "</document>",
    ),
    "out of their count": ('<source id="{n}">', '</source>\n<source id="9">', "</source>"),
    "twice one number": (
        '<source id="{n}" name="a">',
        '</source>\n<source id="1" name="a">',
        "</source>",
    ),
    "without their names": (
        "<document><filename>f{n}</filename>\n<context>",
        "</context></document>\n<document>",
        "</context></document>",
    ),
    "without their titles": ("<kb><t>t{n}</t>", "</kb>\n<kb>", "</kb>"),
    "half of an inner one": (
        "<document><source>f{n}</source>\n<document_content>",
        "</document>\n<document>",
        "</document_content></document>",
    ),
}


@pytest.mark.parametrize("at", [0, 1, 2])
@pytest.mark.parametrize("name", TORN)
def test_the_end_of_an_element_and_another_ones_beginning_in_a_document(name: str, at: int) -> None:
    """A part of such a file: its elements are not written as those of the list are."""
    opener, torn, closer = TORN[name]

    def listed(*documents: str) -> str:
        units = (f"{opener.format(n=n)}{t}{closer}" for n, t in enumerate(documents, 1))
        return prompt("\n".join(units))

    texts = [LEASE * 3, RENT * 3]
    assert scan(listed(*texts, PETS * 3)).groups, "without it they are found"
    texts.insert(at, f"{PETS}{torn}{NOISE} {NOISE}")
    result = scan(listed(*texts))
    assert (result.groups, bool(result.problem)) == ((), True)


@pytest.mark.parametrize(
    "instruction",
    [
        *("Summarise what follows.", "", "Facts:", "Answer me: what is it?", "Reply in English."),
        "Say what answers these pages give.",
    ],
)
def test_a_question_ends_a_list_only_where_instructions_speak_of_one(instruction: str) -> None:
    listed = numbered("Document {}:")([RENT, PETS, LEASE])
    text = f"{instruction}\n\n{listed}\n\nQuestion: How do I cancel?"
    assert scan(text, question=Question.POSSIBLE).groups == ()
    assert bool(scan(text, question=Question.ANNOUNCED).groups) == ("?" not in instruction)
    asked = text.replace(instruction, "Answer the question.", 1)
    assert scan(asked, question=Question.POSSIBLE).groups or not instruction
    assert scan(text.replace("Question: ", ""), question=Question.ANNOUNCED).groups == ()


def test_a_question_with_its_answer_and_more_is_a_part_of_the_last_document() -> None:
    listed = numbered("Passage {}:")([RENT, PETS])
    text = f"Answer.\n\n{listed}\n\nQuestion: When is it due?\nAnswer: {LEASE}\nWho signed?"
    assert scan_prompt(text).groups == ()


@pytest.mark.parametrize("at", ["before", "behind", "between others"])
def test_elements_beside_other_texts_in_one_element_are_parts_of_documents(at: str) -> None:
    files = [f"<add>\n<doc>{text * 2}</doc>\n</add>" for text in (RENT, PETS)]
    lines = {"before": [LEASE, *files], "behind": [*files, LEASE]}.get(at, [LEASE, *files, NOISE])
    assert scan(prompt("<context>\n{}\n</context>".format("\n".join(files)))).groups
    assert scan(prompt("<context>\n{}\n</context>".format("\n".join(lines)))).groups == ()


LABELLED = numbered("Document {}:")([RENT, PETS])
HEADED = "\n\n".join(f"Source: {text[:4]}.pdf\nContent: {text}" for text in (RENT, PETS))


@pytest.mark.parametrize("listed", [LABELLED, LABELLED.replace("\n\n", "\n"), HEADED])
@pytest.mark.parametrize("last", ["Question: Who signed?", "Use only the context above."])
def test_a_line_behind_the_documents_in_their_container_is_no_part_of_the_last_one(
    listed: str, last: str
) -> None:
    gap = "\n\n" if "\n\n" in listed else "\n"
    for opener, closer in (("<context>", "</context>"), ("=" * 12, "=" * 12)):
        assert scan(f"{opener}\n{listed}\n{closer}").groups
        assert scan(f"{opener}\n{listed}{gap}{last}\n{closer}").groups == ()


@pytest.mark.parametrize("name", ["task", "input", "query", "prompt", "system", "instructions"])
def test_what_is_not_said_to_hold_documents_may_hold_the_question(name: str) -> None:
    for listed in (LABELLED, HEADED):
        assert scan(f"<{name}>\n{listed}\n</{name}>").groups == ()
        for held in ("context", "knowledge_base", "search-results", "kontext", "参考资料"):
            assert scan(f"<{held}>\n{listed}\n</{held}>").groups


def test_pages_cut_into_documents_are_found_wherever_their_tags_end() -> None:
    pages = [
        f"<html><body><div><p>{RENT}</p>",
        f"<p>{PETS}</p></div><div>",
        f"{LEASE}</div></body>",
    ]
    assert len(scan(prompt(elements("document")(pages * 2))).groups) == 1
