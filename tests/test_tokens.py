import pytest

from ragboost.tokens import TokenCounter, estimate_tokens
from ragboost.types import Document


@pytest.mark.parametrize(
    ("text", "tokens"),
    [("a", 1), ("abcd", 1), ("abcde", 2), ("", 1), ("日本語文", 3), ("\ud800", 1)],
)
def test_an_estimate_is_a_token_per_four_bytes(text: str, tokens: int) -> None:
    assert estimate_tokens(text) == tokens


def test_a_document_is_counted_once_with_its_title() -> None:
    calls = []

    def count(text: str) -> int:
        calls.append(text)
        return len(text.split())

    counter = TokenCounter(count)
    documents = [Document("one two", title="Title"), Document("three")]

    assert counter.count_documents(documents) == [3, 1]
    assert counter.count_documents(documents[::-1]) == [1, 3]
    assert calls == ["Title\none two", "three"]


def test_a_document_is_at_least_one_token_long() -> None:
    assert TokenCounter(lambda _: 0).count_documents([Document("x")]) == [1]


def test_the_cache_is_bounded() -> None:
    counter = TokenCounter(max_documents=10)

    counter.count_documents([Document(f"text {i}") for i in range(100)])

    assert len(counter) == 10
