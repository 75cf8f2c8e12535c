import pytest

from ragboost.errors import InvalidDocumentError
from ragboost.requests.formats.documents import DocumentPool
from ragboost.types import Document


def fresh(text: str) -> str:
    """Return an equal text that is another object, as every request has."""
    return text[:1] + text[1:]


def test_the_same_text_is_the_same_document() -> None:
    known = DocumentPool()
    text = "A text." * 10
    first = known.of(fresh(text))
    assert first == Document(text)
    assert known.of(fresh(text)) is first
    assert known.all_of([fresh(text), {"text": text, "id": 1}], where="documents")[0] is first
    assert known.of(text + " ") is not first
    assert len(known) == 2


def test_documents_with_an_id_are_made_anew() -> None:
    known = DocumentPool()
    documents = known.all_of([{"text": "a", "id": 1}, {"text": "a", "id": "1"}, "a"], where="d")
    assert [document.id for document in documents] == [1, "1", None]
    assert len({document.key for document in documents}) == 3
    assert len(known) == 1


def test_bytes_are_bounded_and_used_texts_stay() -> None:
    known = DocumentPool(max_bytes=100_000)
    used = known.of("used " * 100)
    for number in range(1000):
        known.of(f"{number} " * 500)
        assert known.of("used " * 100) is used
    assert len(known) < 60
    known.of("x" * 60_000)  # more than half of the bytes
    assert known.of("used " * 100) is used


def test_values_of_a_list_are_used_as_well() -> None:
    known = DocumentPool(max_bytes=100_000)
    (used,) = known.all_of(["used " * 100], where="documents")
    for number in range(100):
        known.of(f"{number} " * 500)
        assert known.all_of([fresh("used " * 100)], where="documents")[0] is used


def test_blank_texts_are_left_out_as_without_a_memory() -> None:
    known = DocumentPool()
    with pytest.raises(InvalidDocumentError):
        known.of(" \n")
    for _ in range(2):
        documents = known.all_of(["a", "", {"text": " "}, "b"], where="documents")
        assert [document.text for document in documents] == ["a", "b"]
    with pytest.raises(InvalidDocumentError, match=r"documents\[2\]"):
        known.all_of(["a", "", 5], where="documents")  # type: ignore[list-item]
    with pytest.raises(InvalidDocumentError, match="must be a list"):
        known.all_of("text", where="documents")
