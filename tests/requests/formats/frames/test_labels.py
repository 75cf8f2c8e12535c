"""Documents under numbered labels: which are found, where the last one ends, what is said."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ragboost.config import Settings
from ragboost.requests.formats import NumberedDocumentsError, UnmarkedDocumentsError
from ragboost.requests.formats.frames import scan
from ragboost.requests.formats.references import stands_alone
from tests.requests.formats.frames.texts import (
    LEASE,
    NOISE,
    PETS,
    PLAIN,
    RENT,
    numbered,
    prompt,
    scan_prompt,
    texts_of,
)
from tests.requests.formats.rewriting import find, reorder, text_of, user

LABELS = [
    "Document {}:",
    "[Document {}]",
    "[{}]",
    "Passage {}:",
    "Source #{}:",
    "Dokument {}:",
    "文档{}\uff1a",
    "【資料{}】",
    "**Chunk {}**",
    "### Result {}:",
    "Document {} :",
    "[[{}]]",
    "*** Document {} ***\n",
    "----- Extract {} -----\n",
    "Document[{}]:\n",
    "Source ({}):",
    "दस्तावेज़ {}:",
    "แหล่งที่มา {}:",
    "{{{{document {}}}}}\n",
]


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("label", LABELS)
def test_labels_in_any_language_are_found_in_front_of_a_question(label: str, first: int) -> None:
    write = numbered(label, first=first)
    assert texts_of(scan_prompt(prompt(write([LEASE, RENT, PETS])))) == [[LEASE, RENT, PETS]]
    text = prompt(write([LEASE, RENT, PETS]))
    assert text_of(reorder(user(text), [2, 0, 1], PLAIN)) == prompt(write([PETS, LEASE, RENT]))


@pytest.mark.parametrize(
    ("opener", "closer"),
    [
        ("[CONTEXT {}]:\n", "\n[END CONTEXT {}]"),
        ("Begin {}:\n", "\nEnd {}:"),
        ("<ctx_{}>\n", "\n</ctx_{}>"),
        ("<<<DOCUMENT {}>>>\n", "\n<<<END DOCUMENT {}>>>"),
        ("<|document_{}|>\n", "\n<|end_document_{}|>"),
        ("----- BEGIN SOURCE {} -----\n", "\n----- END SOURCE {} -----"),
    ],
)
def test_labels_that_close_prove_where_a_document_ends(opener: str, closer: str) -> None:
    def write(*documents: str) -> str:
        blocks = [opener.format(i) + text + closer.format(i) for i, text in enumerate(documents)]
        return "Context:\n" + "\n\n".join(blocks)

    paragraphs = f"{RENT}\n\n{NOISE}"
    text = write(LEASE, paragraphs, PETS)
    assert texts_of(scan(text)) == [[LEASE, paragraphs, PETS]]
    moved = text_of(reorder(user(text), [1, 2, 0], PLAIN))
    assert moved == write(paragraphs, PETS, LEASE)


@pytest.mark.parametrize("title", [" (score 0.{}):\n", " [{}.pdf]\n", " - No. {}:\n", " | {}\n"])
def test_a_title_behind_the_number_moves_with_its_document(title: str) -> None:
    def write(order: list[int]) -> str:
        texts = [f"{title.format(i + 4)}{(LEASE, RENT, PETS)[i]}" for i in order]
        return prompt("\n\n".join([f"Document {n}{text}" for n, text in enumerate(texts, 1)]))

    assert text_of(reorder(user(write([0, 1, 2])), [2, 0, 1], PLAIN)) == write([2, 0, 1])
    said = write([0, 1, 2]).replace("Document 2 ", "Document 2 says ")
    assert find(user(said)) is None


@pytest.mark.parametrize(
    "tail",
    [
        f"\n\n{NOISE}\nQuery: who signed?\nAnswer:",
        f"\n\n{NOISE}\nWho signed?",
        f"\n\nQuestion: may music be heard?\nAnswer: {NOISE}",
    ],
)
def test_a_paragraph_of_the_last_document_is_no_part_of_a_question(tail: str) -> None:
    text = f"Read this.\n\n{numbered('Document {}:')([LEASE, RENT, PETS])}{tail}"
    assert texts_of(scan_prompt(text)) == []


@pytest.mark.parametrize(
    "container",
    [
        "<context>\n{}\n</context>\nWhich?",
        "Below are numbered sources:\n------\n{}\n------\nQuery: which?",
        "Context:\n=======\n{}\n=======\n",
    ],
)
def test_a_container_proves_where_the_last_document_ends(container: str) -> None:
    documents = [LEASE, f"{RENT}\n\nQuestion: and then?\nAnswer: {NOISE}", PETS]
    for separator in ("\n", "\n\n"):
        write = numbered("[{}]", separator=separator)
        assert texts_of(scan(container.format(write(documents)))) == [documents]


def test_rules_between_labels_prove_where_documents_end() -> None:
    def write(*documents: str) -> str:
        blocks = [
            f"\n------\nID: {i}\n├── Title: f.pdf\n└── Content:\n{text}\n"
            for i, text in enumerate(documents)
        ]
        return "Knowledge base:\n" + "".join(blocks) + "\n------\nAnswer in Chinese."

    documents = [LEASE, f"{RENT}\n\n{NOISE}", PETS]
    assert texts_of(scan(write(*documents))) == [documents]
    moved = text_of(reorder(user(write(*documents)), [1, 2, 0], PLAIN))
    assert moved == write(documents[1], PETS, LEASE)


@pytest.mark.parametrize("rule", ["---", "***", "======", "------"])
def test_rules_between_labels_stay_between_the_documents(rule: str) -> None:
    def write(*documents: str) -> str:
        return f"\n\n{rule}\n\n".join(f"[{n}] {text}" for n, text in enumerate(documents, 1))

    documents = [LEASE, f"{RENT}\n\n{NOISE}", PETS]
    assert texts_of(scan(write(*documents), is_tool=True)) == [documents]
    listed = f"<context>\n{write(*documents)}\n</context>"
    moved = text_of(reorder(user(listed), [2, 0, 1], PLAIN))
    assert moved == f"<context>\n{write(PETS, LEASE, documents[1])}\n</context>"
    assert not scan(write(LEASE, RENT), is_tool=True).groups, "it may be the end of the first"


@pytest.mark.parametrize("rule", ["---", "*****", "======"])
def test_rules_that_a_text_follows_on_their_line_may_be_the_end_of_the_documents(rule: str) -> None:
    documents = [f"{LEASE}\n{rule}", f"{RENT}\n{rule}", f"{PETS}\n{rule} {NOISE}"]
    listed = numbered("【資料{}】\n")(documents)
    assert not scan_prompt(prompt(listed)).groups
    assert not scan(f"<context>\n{listed}\n</context>").groups
    assert scan_prompt(prompt(listed.removesuffix(f"\n{rule} {NOISE}"))).groups


@pytest.mark.parametrize("separator", ["\n\n", "\n\n\n"])
def test_rules_that_stand_otherwise_than_the_one_before_the_list_are_the_documents(
    separator: str,
) -> None:
    """Of three rules, the second one ends the first document or divides the list."""
    write = numbered("[Document {}]\n", separator=separator)
    for end in ("\n-----", "\n\n-----"):
        text = f"-----\n{write([LEASE + end, RENT])}\n-----"
        assert not scan_prompt(prompt(text)).groups
    for documents in ([LEASE, RENT + "\n-----", PETS], [LEASE + "\n-----", RENT, PETS]):
        assert not scan_prompt(prompt(f"-----\n{write(documents)}\n-----")).groups
        assert not scan(f"<context>\n{write(documents)}\n-----\n</context>").groups


@pytest.mark.parametrize(
    "end",
    [
        "\n</context>",
        "</context>",
        "\n[END]",
        '\n"""',
        "\n(end)",
        "\nUse these only.",
        "\n- by Ada",
    ],
)
def test_a_last_line_that_no_other_document_has_may_belong_to_the_prompt(end: str) -> None:
    write = numbered("[{}]")
    assert scan_prompt(prompt(write([LEASE, RENT, PETS]))).groups
    assert not scan_prompt(prompt(write([LEASE, RENT, PETS + end]))).groups
    if end[1:2] in '</["':
        assert not scan_prompt(prompt(write([f"{LEASE}\n{NOISE}", RENT, PETS + end]))).groups


@pytest.mark.parametrize(
    "container",
    [
        "Use these pieces of context to answer:\n\n{}\n\nQuestion: who?",
        "<context>\n{}\n</context>",
        "{}",
    ],
)
def test_marks_around_a_list_inside_a_container_are_no_part_of_its_last_document(
    container: str,
) -> None:
    listed = numbered("[{}]")([LEASE, f"{RENT}\n{NOISE}", PETS])
    for marks in ('"""\n{}\n"""', "(begin)\n\n{}\n\n(end)", "Found 3:\n\n{}\n\nShowing 3 of 10"):
        text = container.format(marks.format(listed))
        assert not scan(text, is_tool=container == "{}").groups
    assert scan(container.format(f"Found:\n\n{listed}"), is_tool=container == "{}").groups


RULED = {
    "rules alone": "\n{rule}\n{text}",
    "a label": "\n{rule}\n\nID: {n}\n├── Title: f.pdf\n└── Content:\n{text}\n",
    "a header": "\n{rule}\nSource: f.pdf\nContent: {text}",
}
INNER = {
    "labels": numbered("Source {}:\n"),
    "headings": numbered("### Document {}: Part\n"),
    "headers": lambda texts: "\n\n".join(f"Source: a.md\nContent: {text}" for text in texts),
    "labels between rules": lambda texts: f"------\n{numbered('Source {}:')(texts)}\n------",
}


@given(
    st.sampled_from(sorted(RULED)),
    st.sampled_from(sorted(INNER)),
    st.sampled_from(["---", "------", "***"]),
    st.integers(0, 2),
    st.booleans(),
)
def test_a_list_inside_one_of_the_documents_that_rules_divide_is_left_alone(
    frame: str, inner: str, rule: str, place: int, is_wrapped: bool
) -> None:
    # Two rules may enclose a list, as LlamaIndex writes it, or one of the documents.
    is_enclosed = (frame, rule, place) == ("rules alone", "------", 1) or "rules" in inner
    assume(not is_wrapped or frame == "a label" or not is_enclosed)
    documents = [RENT, PETS, f"{RENT}\n\n{NOISE}"]
    documents[place] = INNER[inner]([LEASE, NOISE])
    listed = "".join(
        RULED[frame].format(rule=rule, n=n, text=text) for n, text in enumerate(documents)
    ).removeprefix(f"\n{rule}\n" if frame == "rules alone" else "")
    text = f"<context>\n{listed}\n</context>" if is_wrapped else listed
    for group in scan(text, is_tool=not is_wrapped).groups:
        for block in group.blocks if is_wrapped or stands_alone(group, is_tool=True) else ():
            assert block.text in documents, "a part of a document"


@pytest.mark.parametrize(
    "tail",
    ["", "\n\nWho signed? Be brief.\n\nOr not.", "\nQuestion: who signed?", "\n\nAnswer briefly."],
)
def test_a_last_document_without_a_certain_end_leaves_the_list_open(tail: str) -> None:
    text = numbered("[Document {}]")([LEASE, RENT, PETS]) + tail
    result = scan_prompt(text)
    assert result.groups == ()
    assert [text[mark:][:12] for mark in result.marks] == [f"[Document {i}]" for i in (1, 2, 3)]
    with pytest.raises(UnmarkedDocumentsError, match="no certain end"):
        reorder(user(text))


def test_documents_of_several_paragraphs_before_a_question_leave_the_list_open() -> None:
    """The question could be the end of the last one."""
    for documents in ([f"{LEASE}\n\n{NOISE}", RENT], [LEASE, f"{RENT}\n\n{NOISE}"]):
        result = scan_prompt(prompt(numbered("[Document {}]")(documents)))
        assert result.groups == ()
        assert len(result.marks) == 2


def test_only_a_users_own_message_ends_with_a_question() -> None:
    text = prompt(numbered("[Document {}]")([LEASE, RENT]))
    assert scan(text).groups == ()
    instructions = {"role": "system", "content": text}
    with pytest.raises(UnmarkedDocumentsError):
        reorder({"messages": [instructions, {"role": "user", "content": "Why?"}]})


def test_a_tools_result_ends_with_its_last_document() -> None:
    documents = [f"{LEASE}\n\n{NOISE}", RENT, f"{PETS}\n\nQuestion: why?"]
    assert texts_of(scan(numbered("[{}]")(documents), is_tool=True)) == [documents]


@pytest.mark.parametrize("numbers", [(1, 3), (1, 2, 2), (2, 1), (1, 2, 4), (1, 2, 1, 2)])
def test_numbers_with_gaps_or_repetitions_are_no_list(numbers: tuple[int, ...]) -> None:
    blocks = [f"[Document {number}] {LEASE}" for number in numbers]
    result = scan_prompt(prompt("\n\n".join(blocks)))
    assert result.groups == ()


def test_labels_that_are_ids_stay_with_their_documents() -> None:
    text = f"Answer.\n\n[Doc_17] {LEASE}\n\n[Doc_3] {RENT}\n\nQuestion: which?"
    moved = text_of(reorder(user(text), [1, 0]))
    assert moved.startswith(f"Answer.\n\n[Doc_3] {RENT}\n\n[Doc_17] {LEASE}\n\n")
    assert "[Doc_17] >> [Doc_3]" in moved
    assert "Cite" not in moved


def test_a_heading_and_a_tree_above_a_text_move_with_it() -> None:
    def write(*documents: str) -> str:
        blocks = [f"### Document {i}: {text[:9]}\n{text}" for i, text in enumerate(documents, 1)]
        return prompt("\n\n".join(blocks))

    assert texts_of(scan_prompt(write(LEASE, RENT))) == [[LEASE, RENT]]
    assert text_of(reorder(user(write(LEASE, RENT)), [1, 0], PLAIN)) == write(RENT, LEASE)


def test_numbered_documents_keep_their_places_if_so_configured() -> None:
    settings = Settings(formats={"numbers": "keep"})
    with pytest.raises(NumberedDocumentsError):
        reorder(user(prompt(numbered("[Doc {}]")([LEASE, RENT]))), settings=settings)
    plain = f"<doc>{LEASE}</doc>\n<doc>{RENT}</doc>"
    assert find(user(plain), settings) is not None


def test_ids_of_a_list_without_an_end_are_not_taken_for_places() -> None:
    text = "Use these.\n\n" + "\n\n".join(f"[Doc_{i}] {i} {'is a document. ' * 8}" for i in (17, 3))
    found = scan(text)
    assert len(found.marks) == 2
    assert found.numbers == ()
    text = text.replace("[Doc_17]", "[Doc_1]").replace("[Doc_3]", "[Doc_2]")
    assert [text[slice(*at)] for at in scan(text).numbers] == ["1", "2"]


def test_a_header_that_only_one_document_has_is_its_text() -> None:
    documents = [f"├── Title: {LEASE[:9]}\n\n{LEASE}", RENT]
    listed = numbered("Document {}:", separator="\r\n\r\n")(documents)
    assert texts_of(scan(listed, is_tool=True)) == [documents]


def test_a_field_with_which_a_document_begins_is_no_header() -> None:
    def write(text: str, at: int) -> str:
        return f"------\n\nID: {at}\n├── Title: t{at}\n└── Content:\n{text}\n\n"

    documents = [f"├── Title: {RENT}\n{LEASE}", RENT]
    text = "".join(write(text, at) for at, text in enumerate(documents)) + "------\n"
    assert texts_of(scan_prompt(text)) == [documents]


def test_a_document_of_nothing_but_a_title_is_a_document() -> None:
    documents = [f"├── Title: {LEASE} {at}" for at in range(3)]
    listed = numbered("ID: {}\n", first=0)(documents)
    assert texts_of(scan(listed, is_tool=True)) == [documents]


def test_a_label_that_goes_on_with_another_mark_is_another_label() -> None:
    found = scan_prompt(prompt(f"[1] {LEASE}\n\n[2] {RENT}\n\n[3]: {PETS}"))
    assert not found.groups
    assert len(found.marks) == 2


def test_an_element_around_the_first_label_and_none_around_the_second_is_no_document() -> None:
    torn = f"{LEASE}</document>\n<document>{PETS}</document>"
    listed = numbered("【資料{}】\n")([torn, RENT])
    example = "Sources look like this:\n<document>\nan example\n\nBelow are the real ones.\n\n"
    assert not scan(example + listed).groups
    assert texts_of(scan(f"<document>{LEASE}</document>\n<document>{PETS}</document>\n\n{RENT}"))
