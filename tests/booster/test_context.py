from hypothesis import given
from hypothesis import strategies as st

from ragboost.booster.booster import Booster
from ragboost.config import Settings
from ragboost.types import Document

DOCUMENTS = st.lists(
    st.builds(
        Document,
        text=st.text(min_size=1).filter(str.strip),
        id=st.one_of(st.none(), st.integers(0, 3)),
        title=st.one_of(st.none(), st.text(max_size=5)),
    ),
    max_size=6,
)


def test_documents_hints_and_question_stand_in_this_order() -> None:
    booster = Booster(count_tokens=lambda text: 10)
    booster.boost("q", [Document("Second.", id=2), Document("First.", id=1, title="One")])

    context = booster.boost(
        "Where is E?", [Document("First.", id=1, title="One"), Document("Second.", id=2)]
    )

    assert context.render() == (
        "[Doc_2]\nSecond.\n\n"
        "[Doc_1] One\nFirst.\n\n"
        "Documents by relevance, most relevant first: [Doc_1] >> [Doc_2]\n\n"
        "Where is E?"
    )


def test_templates_are_the_users() -> None:
    hints = {
        "label_template": "Source {label}:",
        "order_template": "{Rang}folge: {order}",
        "location_template": "Siehe oben {document}",
    }
    booster = Booster(Settings.model_validate({"hints": hints}))
    one, two = Document("a", id=1), Document("b", id=2)
    booster.boost("q", [two, one])

    first = booster.boost("Where?", [one, two], session="s")
    second = booster.boost("And?", [two], session="s")

    assert first.render() == (
        "Source 2:\nb\n\nSource 1:\na\n\n{Rang}folge: Source 1: >> Source 2:\n\nWhere?"
    )
    assert second.render() == "Siehe oben Source 2:\n\nAnd?"


def test_braces_in_documents_are_text() -> None:
    context = Booster().boost("{order}", [Document("{document} {label}", id=1, title="{order}")])

    assert context.render() == "[Doc_1] {order}\n{document} {label}\n\n{order}"


def test_messages_are_an_optional_system_prompt_and_one_user_message() -> None:
    context = Booster().boost("Who?", [Document("text", id=1)])

    assert context.messages() == [{"role": "user", "content": context.render()}]
    assert context.messages(system="Be brief.") == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": context.render()},
    ]


@given(DOCUMENTS, DOCUMENTS, DOCUMENTS)
def test_equal_leading_documents_are_equal_leading_bytes(
    shared: list[Document], one: list[Document], other: list[Document]
) -> None:
    settings = Settings.model_validate({"ordering": {"enabled": False}})

    leading = Booster(settings).boost("q", shared).render_documents()

    for tail in (one, other):
        assert Booster(settings).boost("q", [*shared, *tail]).render().startswith(leading)
