from hypothesis import given
from hypothesis import strategies as st

from ragboost.dedup import distinct_elements, unique_documents
from ragboost.types import Document

A, B, C = (Document(name) for name in "abc")


def test_the_most_relevant_of_equals_stays() -> None:
    assert unique_documents([B, A, B, A, C]) == (B, A, C)


def test_no_documents_are_no_documents() -> None:
    assert unique_documents([]) == ()


@given(st.lists(st.sampled_from([A, B, C]), max_size=8))
def test_every_document_is_kept_once_in_order(documents: list[Document]) -> None:
    unique = unique_documents(documents)

    assert list(unique) == list(dict.fromkeys(documents))


@given(st.lists(st.sampled_from("abc"), max_size=8))
def test_copies_are_named_apart_and_first_copies_by_their_key(keys: list[str]) -> None:
    elements = distinct_elements(keys)

    assert len(set(elements)) == len(keys)
    assert set(keys) <= set(elements)
