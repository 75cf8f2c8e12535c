from hypothesis import given
from hypothesis import strategies as st

from ragboost.dedup import Unique, distinct_elements, unique_documents
from ragboost.types import Document

A, B, C = (Document(name) for name in "abc")


def test_the_most_relevant_of_equals_stays() -> None:
    assert unique_documents([B, A, B, A, C]) == Unique((B, A, C), (0, 1, 0, 1, 2))


def test_no_documents_are_no_documents() -> None:
    assert unique_documents([]) == Unique((), ())


@given(st.lists(st.sampled_from([A, B, C]), max_size=8))
def test_every_document_has_its_slot(documents: list[Document]) -> None:
    unique = unique_documents(documents)

    assert len(set(unique.documents)) == len(unique.documents)
    assert [unique.documents[slot] for slot in unique.slots] == documents


@given(st.lists(st.sampled_from("abc"), max_size=8))
def test_copies_are_named_apart_and_first_copies_by_their_key(keys: list[str]) -> None:
    elements = distinct_elements(keys)

    assert len(set(elements)) == len(keys)
    assert set(keys) <= set(elements)
