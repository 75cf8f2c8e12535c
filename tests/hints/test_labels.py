from hypothesis import given
from hypothesis import strategies as st

from ragboost.hints import label_documents
from ragboost.types import Document

IDS = st.sampled_from([None, 1, "1", True, "true", 1.0, "x", "1~abcd", "two words"])
DOCUMENTS = st.lists(st.builds(Document, text=st.sampled_from("abcdef"), id=IDS), max_size=12)


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
