"""What the model is told about documents in another order."""

import pytest

from ragboost.requests.formats.frames import scan
from ragboost.requests.formats.groups import TextGroup
from ragboost.requests.formats.notes import may_cite, note
from tests.requests.formats.frames.texts import DOCUMENTS, LEASE, RENT, elements, numbered, prompt
from tests.requests.formats.rewriting import reorder, text_of, user

TEMPLATE = "By relevance: {order}"


def group(listed: str) -> TextGroup:
    (found,) = scan(f"<context>\n{listed}\n</context>").groups
    return found


@pytest.mark.parametrize(
    "text",
    [
        "Cite your sources.",
        "Use citations like [1].",
        "Add the [id] behind each fact.",
        "Which of them contradicts document 2?",
        "请在回答中引用来源",
        "Zitiere die Quellen.",
        "Citez les documents.",
    ],
)
def test_a_text_that_lets_the_model_cite_numbers_is_known(text: str) -> None:
    assert may_cite(text)
    assert may_cite(f"{'x ' * 200_000}{text}{' x' * 20_000}")


@pytest.mark.parametrize("text", ["", "Who signed the lease?", "Answer in one sentence."])
def test_other_texts_do_not(text: str) -> None:
    assert not may_cite(text)


def test_numbers_that_may_be_cited_get_no_note() -> None:
    numbers = group(numbered("[{}]", first=0)(DOCUMENTS))
    assert note(numbers, [2, 1, 0, 3], cites=True, template=TEMPLATE) == ""


def test_without_citations_the_order_is_told() -> None:
    numbers = group(numbered("[{}]")(DOCUMENTS))
    told = note(numbers, [2, 1, 0, 3], cites=False, template=TEMPLATE)
    assert told == "By relevance: 3 >> 2 >> 1 >> 4"
    assert note(numbers, [2, 1, 0, 3], cites=False, template=None) == ""


def test_short_names_of_documents_are_used_and_long_ones_are_not() -> None:
    def listed(name: str) -> str:
        return "\n".join(f'<doc name="{name}{i}">{text}</doc>' for i, text in enumerate(DOCUMENTS))

    order = [1, 0, 2, 3]
    told = note(group(listed("f")), order, cites=False, template=TEMPLATE)
    assert told == 'By relevance: "f1" >> "f0" >> "f2" >> "f3"'.replace(
        '"f1" >> "f0"', '"f0" >> "f1"'
    )
    told = note(group(listed("a long name of a file ")), order, cites=False, template=TEMPLATE)
    assert told.startswith("By relevance: document 2 >> document 1 >> ")


def test_a_note_costs_at_most_eight_tokens_a_document() -> None:
    """Four characters are about a token."""
    many = [f"{text} {number}" for text in DOCUMENTS for number in range(10)]
    order = list(range(len(many)))[::-1]
    for listed in (numbered("[{}]")(many), elements("document")(many)):
        for cites in (False, True):
            told = note(group(listed), order, cites=cites, template=TEMPLATE)
            assert len(told) <= 32 * len(many)


def test_nothing_but_the_documents_changes_if_they_may_be_cited() -> None:
    text = prompt(f"Cite [n].\n\n{numbered('Document {}:')([LEASE, RENT])}")
    moved = text_of(reorder(user(text), [1, 0]))
    assert moved == prompt(f"Cite [n].\n\n{numbered('Document {}:')([RENT, LEASE])}")
