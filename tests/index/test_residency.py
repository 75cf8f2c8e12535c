"""The index is set to what an engine reports as resident."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ragboost.errors import ContextIndexError
from ragboost.index import ContextIndex
from tests.integrity import check_index

TOKENS = {"a": 10, "b": 20, "c": 30, "d": 40}


def lengths(documents: str) -> list[int]:
    return [TOKENS[document] for document in documents]


def hold(index: ContextIndex, documents: str, num_documents: int, partial_tokens: int = 0) -> None:
    index.set_resident(
        documents,
        lengths(documents),
        num_documents=num_documents,
        partial_tokens=partial_tokens,
    )
    check_index(index)


def cached(index: ContextIndex, documents: str) -> int:
    return index.cached_prefix(documents)[1]


def test_a_sequence_shrinks_to_its_resident_part_and_grows_again() -> None:
    index = ContextIndex()
    index.insert("abc", lengths("abc"))
    hold(index, "abc", 2)
    assert cached(index, "abc") == 30
    hold(index, "abc", 3)
    assert cached(index, "abc") == 60
    hold(index, "abc", 0)
    assert (index.num_nodes, index.num_tokens) == (0, 0)


def test_other_sequences_lose_only_what_lies_behind_the_lost_document() -> None:
    index = ContextIndex()
    for documents in ("abc", "abd", "ac", "d"):
        index.insert(documents, lengths(documents))
    hold(index, "abc", 1)
    assert [cached(index, s) for s in ("abc", "abd", "ac", "d")] == [10, 10, 40, 40]


def test_a_document_may_be_resident_in_part() -> None:
    index = ContextIndex()
    for documents in ("abc", "abd"):
        index.insert(documents, lengths(documents))
    hold(index, "abc", 1, partial_tokens=7)
    assert [cached(index, s) for s in ("abc", "abd", "ab")] == [17, 17, 17]
    assert index.num_tokens == 17
    hold(index, "abd", 3)
    assert cached(index, "abd") == 70


def test_a_cut_that_is_the_whole_document_or_beyond_the_last_counts_for_nothing() -> None:
    index = ContextIndex()
    hold(index, "ab", 1, partial_tokens=20)
    assert cached(index, "ab") == 10
    hold(index, "ab", 2, partial_tokens=5)
    assert cached(index, "ab") == 30


def test_only_leaves_of_the_index_can_be_cut() -> None:
    index = ContextIndex()
    index.insert("ab", lengths("ab"))
    node = index.insert("a", lengths("a"))
    with pytest.raises(ContextIndexError, match="not a leaf"):
        index.truncate(node, 5)
    with pytest.raises(ContextIndexError, match="not a leaf"):
        index.truncate(index.root, 5)


def test_confirmed_parts_of_other_sequences_stay_until_their_removal_is_reported() -> None:
    index = ContextIndex()
    hold(index, "abc", 3)
    hold(index, "abd", 3)
    hold(index, "abc", 1, partial_tokens=7)  # b ends elsewhere than was thought, or is lost
    assert [cached(index, s) for s in ("abc", "abd")] == [30, 70]
    hold(index, "abd", 1, partial_tokens=7)
    assert [cached(index, s) for s in ("abc", "abd")] == [17, 17]


STEP = st.tuples(st.permutations("abcd"), st.integers(1, 4), st.integers(0, 4), st.integers(0, 39))


@settings(max_examples=80, deadline=None)
@given(st.lists(STEP, max_size=25))
def test_after_any_steps_the_last_one_holds_and_no_more_than_others_confirm(
    steps: list[tuple[list[str], int, int, int]],
) -> None:
    index = ContextIndex()
    told: dict[str, int] = {}  # what each sequence was last said to hold
    for order, length, num_documents, partial_tokens in steps:
        documents = "".join(order[:length])
        num_documents = min(num_documents, length)
        before = {s: cached(index, s) for s in ("abcd", "bcda", "cdab", "dabc")}
        hold(index, documents, num_documents, partial_tokens)
        whole = sum(lengths(documents[:num_documents]))
        is_cut = num_documents < length and partial_tokens < TOKENS[documents[num_documents]]
        told[documents] = whole + (partial_tokens if is_cut else 0)
        others = [
            sum(lengths(documents[: common(documents, other)]))
            for other, tokens in told.items()
            if tokens > 0 and other != documents
        ]
        assert told[documents] <= cached(index, documents) <= max([told[documents], *others])
        for sequence, tokens in before.items():
            if sequence[0] != documents[0]:
                assert cached(index, sequence) == tokens


def common(one: str, two: str) -> int:
    return next((i for i, (a, b) in enumerate(zip(one, two)) if a != b), min(len(one), len(two)))  # noqa: B905
