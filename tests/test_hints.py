from hypothesis import given
from hypothesis import strategies as st

from ragboost.hints import label_documents, location_hints, order_hint
from ragboost.types import Document

IDS = st.sampled_from([None, 1, "1", True, "true", 1.0, "x", "1~abcd", "two words"])
DOCUMENTS = st.lists(st.builds(Document, text=st.sampled_from("abcdef"), id=IDS), max_size=12)


def test_the_order_hint_has_the_papers_wording() -> None:
    template = (
        "Please read the context in the following priority order: {order} and answer the question."
    )

    hint = order_hint(["[Doc_1]", "[Doc_2]", "[Doc_4]"], [1, 0, 2], template=template)

    assert hint is not None
    assert hint.text == (
        "Please read the context in the following priority order: [Doc_2] >> [Doc_1] >> [Doc_4] "
        "and answer the question."
    )


def test_a_long_order_hint_names_the_most_relevant_and_the_rest_if_it_is_in_order() -> None:
    labels = [f"[{i}]" for i in range(60)]
    first = [49, *range(49)]

    short = order_hint(labels, first, template="{order}")
    assert short is not None
    assert short.text.endswith("[47] >> [48]")
    long = order_hint(labels, [*first, *range(50, 60)], template="{order}.")
    assert long is not None
    assert long.text.endswith("[47] >> [48] >> then the rest in the order shown.")
    assert long.labels == tuple(labels[place] for place in first)
    moved = order_hint(labels, [*first, *range(51, 60), 50], template="{order}.")
    assert moved is not None
    assert moved.text.endswith("[47] >> [48].")
    assert moved.labels == long.labels


def test_the_order_hint_names_copies_of_a_document_once() -> None:
    labels = ["[b]", "[a]", "[c]", "[a]"]  # retrieved as a, b, a, c

    hint = order_hint(labels, [1, 0, 3, 2], template="{order}")

    assert hint is not None
    assert (hint.text, hint.labels) == ("[a] >> [b] >> [c]", ("[a]", "[b]", "[c]"))


def test_documents_of_which_only_copies_have_moved_get_no_order_hint() -> None:
    assert order_hint(["[a]", "[a]", "[b]"], [0, 2, 1], template="{order}") is None
    assert order_hint(["[a]", "[b]"], [0, 1], template="{order}") is None


def test_there_is_one_location_hint_per_document() -> None:
    hints = location_hints(["[a]", "[b]"], template="See {document}.")

    assert [(hint.text, hint.labels) for hint in hints] == [
        ("See [a].", ("[a]",)),
        ("See [b].", ("[b]",)),
    ]


def test_a_label_known_to_the_session_stays() -> None:
    old, new = Document("old", id=7), Document("new", id=7)

    labels = label_documents([new, old], template="<{label}>", known={old.key: "<7>"})

    assert labels == (f"<7~{new.key[:4]}>", "<7>")


def test_new_labels_carry_their_key_where_others_may_have_been_forgotten() -> None:
    document = Document("text", id=7)

    labels = label_documents([document], template="<{label}>", known={}, is_complete=False)

    assert labels == (f"<7~{document.key[:8]}>",)


@given(DOCUMENTS, st.booleans())
def test_different_documents_have_different_labels(
    documents: list[Document], is_complete: bool
) -> None:
    labels = label_documents(documents, template="[{label}]", known={}, is_complete=is_complete)

    assert len(set(labels)) == len({document.key for document in documents})
    assert len(set(zip(labels, documents, strict=True))) == len(set(labels))


@given(DOCUMENTS, DOCUMENTS)
def test_labels_do_not_depend_on_what_follows(
    leading: list[Document], others: list[Document]
) -> None:
    alone = label_documents(leading, template="[{label}]", known={})

    together = label_documents([*leading, *others], template="[{label}]", known={})

    assert together[: len(leading)] == alone
