"""Elements of one tag, whatever its name."""

import pytest

from ragboost.requests.formats.frames import scan
from tests.requests.formats.frames.texts import (
    DOCUMENTS,
    LEASE,
    NOISE,
    PETS,
    PLAIN,
    RENT,
    elements,
    prompt,
    texts_of,
)
from tests.requests.formats.rewriting import reorder, text_of, user

NAMES = ["document", "doc", "source", "kb_entry", "Fundstelle", "ns.eintrag-1", "資料"]


@pytest.mark.parametrize("name", NAMES)
def test_elements_of_any_name_are_documents(name: str) -> None:
    long = [f"{text} {text}" for text in DOCUMENTS]
    assert texts_of(scan(prompt(elements(name)(long)))) == [long]


def test_attributes_and_inner_tags_stay_with_their_document() -> None:
    one = '<document id="b7" title="Lease"><p>4</p> signed &amp; sealed by Ada</document>'
    two = "<document id='x' title='a > b'>another text of some length</document>"
    text = f"<documents>\n{one}\n{two}\n</documents> Why?"
    moved = text_of(reorder(user(text), [1, 0]))
    assert moved.startswith(f"<documents>\n{two}\n{one}\n</documents>")
    assert '"Lease" >> "a > b"' in moved
    assert moved.endswith(" Why?")


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("name", ["id", "index", "n", "no"])
def test_a_number_that_counts_the_elements_belongs_to_the_place(name: str, first: int) -> None:
    def listed(*documents: str) -> str:
        blocks = [
            f'<source {name}="{at}" name="{text[:5]}">{text}</source>'
            for at, text in enumerate(documents, first)
        ]
        return prompt("\n".join(blocks))

    moved = text_of(reorder(user(listed(LEASE, RENT, PETS)), [2, 0, 1], PLAIN))
    assert moved == listed(PETS, LEASE, RENT)


@pytest.mark.parametrize(("name", "numbers"), [("id", (7, 3)), ("rank", (1, 2))])
def test_other_numbers_belong_to_their_documents(name: str, numbers: tuple[int, int]) -> None:
    """A rank says which document a search put first, wherever it stands."""
    listed = zip(numbers, (LEASE, RENT), strict=True)
    blocks = [f'<source {name}="{number}">{text}</source>' for number, text in listed]
    moved = text_of(reorder(user(prompt("\n".join(blocks))), [1, 0], PLAIN))
    assert moved == prompt("\n".join(blocks[::-1]))


def test_an_inner_element_with_the_text_is_the_document() -> None:
    text = f"""<documents>
<document index="1">
<source>lease.pdf</source>
<document_content>
{LEASE}
</document_content>
</document>
<document index="2">
<source>memo.txt</source>
<document_content>
{RENT}
</document_content>
</document>
</documents>"""
    (group,) = scan(text).groups
    assert [(block.text, block.name) for block in group.blocks] == [
        (LEASE, '"lease.pdf"'),
        (RENT, '"memo.txt"'),
    ]
    assert text[: group.end].endswith("</documents>")


def test_elements_with_text_or_other_separators_between_them_are_ambiguous() -> None:
    first, second, third = (f"<doc>{text}</doc>" for text in (LEASE, RENT, PETS))
    for text in (
        f"{first}\nSee also:\n{second}\n{third}",
        f"{first}\n{second}\n\n{third}",
    ):
        result = scan(text)
        assert (result.groups, result.frame) == ((), "<doc>")
        assert result.problem


def test_lists_that_have_wrappers_of_their_own_are_several_lists() -> None:
    one = f"<laws>\n{elements('doc')([LEASE, RENT])}\n</laws>"
    two = f"<rules>\n{elements('doc')([PETS, NOISE])}\n</rules>"
    assert texts_of(scan(f"{one}\nAnd:\n{two}")) == [[LEASE, RENT], [PETS, NOISE]]


@pytest.mark.parametrize(
    "text",
    [
        f"<doc>{LEASE}\n<doc>{RENT}</doc>\n<doc>{PETS}</doc>",
        f"<doc>{LEASE}</doc>\n<doc>{RENT}</doc>\n{PETS}</doc>",
        f"<doc>{LEASE}</doc>\n<doc {RENT}</doc>\n<doc>{PETS}</doc>",
        f'<doc a="{LEASE}</doc>\n<doc>{RENT}</doc>',
        f"- {NOISE}</doc>\n<doc>{LEASE}\n- {PETS}\n- {RENT}</doc>\n<doc>{NOISE}</doc>",
        f"{NOISE}\n</doc>\n<doc>{LEASE}</doc>\n<doc>{RENT}</doc>",
        f"In a <doc> tag.\n\n{NOISE}</doc>\n<doc>{LEASE}</doc>\n<doc>{RENT}</doc>",
        f"- {NOISE}\n  <doc>{LEASE}</doc>\n  <doc>{RENT}</doc>\n</add>\n- {PETS}",
    ],
)
def test_a_tag_without_its_other_half_is_ambiguous(text: str) -> None:
    result = scan(text)
    assert result.groups == ()
    assert "<doc>" in result.problem


@pytest.mark.parametrize(
    "named", ["End with </doc>.", "Between <doc> and </doc>.", "A <doc>text</doc>.", "`</doc>`"]
)
def test_tags_that_a_sentence_names_above_the_list_are_none_of_it(named: str) -> None:
    text = f"{named}\n\n{elements('doc')([LEASE, RENT])}"
    assert texts_of(scan(text)) == [[LEASE, RENT]]


@pytest.mark.parametrize("name", ["doc", "context"])
@pytest.mark.parametrize(
    "named",
    [
        "Answer from <X></X> only.",
        "避免提及你是从<X></X>获取的知识",
        "What stands in <X>...</X> is true.",
        "What stands between <X> and </X> is true.",
        "Never mention `<X></X>` or `</X>`",
        "- Never mention <X></X>",
        "- <X></X> holds the facts.",
        'Cite <X id="1"></X> as [1].',
    ],
)
def test_tags_that_a_sentence_names_around_the_list_are_none_of_it(named: str, name: str) -> None:
    named = named.replace("X", name)
    listed = "\n".join(f"<doc>\n{text}\n</doc>" for text in (LEASE, RENT))
    text = f"{named}\n\n<context>\n{listed}\n</context>\n\n{named}\n\nWhy?"
    assert texts_of(scan(text)) == [[LEASE, RENT]]


@pytest.mark.parametrize("quote", ["", '"'])
def test_attributes_need_no_quotes(quote: str) -> None:
    def listed(*documents: str) -> str:
        blocks = [
            f"<result index={at} title={quote}Ada's {text[:4]}{quote} lang=en>{text}</result>"
            for at, text in enumerate(documents, 1)
        ]
        return '<context>\n<results note="Cite these">\n{}\n</results>\n</context>'.format(
            "\n".join(blocks)
        )

    moved = text_of(reorder(user(listed(LEASE, RENT, PETS)), [2, 0, 1]))
    assert moved.startswith(listed(PETS, LEASE, RENT).removesuffix("</context>"))
    assert scan(moved).groups[0].blocks[0].name == f'"Ada\'s {PETS[:4]}"'


@pytest.mark.parametrize("num_before", [0, 10, 31, 32, 33, 100, 2000])
def test_documents_are_found_among_many_other_tags(num_before: int) -> None:
    documents = [f"Text {i} <b>bold</b> {'words ' * 300}".strip() for i in range(40)]
    before = "<br>" * num_before
    text = f"{before}{'words ' * 5000}\n{elements('document')(documents)}"
    assert texts_of(scan(text)) == [documents]


def test_a_name_that_holds_a_mark_stands_above_its_text_like_others() -> None:
    def write(name: str, text: str) -> str:
        return f"<document>\n<filename>{name}</filename>\n<context>{text}</context>\n</document>"

    first, second = "The lease runs for two years. " * 3, "The rent is due on the first. " * 3
    (group,) = scan(write("a</b>.md", first) + "\n" + write("c.md", second)).groups
    assert [block.text for block in group.blocks] == [first.strip(), second.strip()]


@pytest.mark.parametrize(
    "text",
    [
        f"Sources look like this:\n<document>\nan example\n\n<context>\n1. {LEASE}</document>\n"
        f"<document>{RENT}</document>\n<document>{PETS}</document>\n2. Cats.\n</context>\n\nWhich?",
        f"<context>\n1. See <document>{RENT}</document>\n<document>{PETS}</document>\n<document>"
        f"{LEASE}\n</context>\nWrite like this:\nan example</document>\n\nWhich?",
    ],
    ids=["the first one begins in an example", "the last one ends in an example"],
)
def test_elements_that_cross_the_end_of_another_one_are_left_alone(text: str) -> None:
    result = scan(text)
    assert result.groups == ()
    assert "across <context>" in result.problem


def test_an_element_that_begins_in_an_example_is_left_alone() -> None:
    halves = f"1. {LEASE}\n\n2. {NOISE}</document>\n<document>{RENT}</document>\n<document>{PETS}"
    text = f"Sources look like this:\n<document>\nan example\n\n{halves}</document>\n\nWhich?"
    result = scan(text)
    assert result.groups == ()
    assert "written otherwise" in result.problem
    short = f"<document>\n{LEASE}</document>\n<document>{NOISE}\n\n{RENT}</document>\n\nWhich?"
    assert len(scan(short).groups) == 1, "texts that begin with a line break are some of many"


def test_a_page_cut_into_documents_is_moved_with_its_torn_tags() -> None:
    """A tag that one chunk of a page opens and another one closes is within the list."""
    text = f"<doc><div>\n{RENT}</doc>\n<doc>{PETS}\n</div></doc>\n\nWhich?"
    assert len(scan(text).groups) == 1
