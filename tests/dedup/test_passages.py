"""Passages: references give the text back, lead to kept text, and depend on the past alone."""

import random
import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from ragboost.dedup import (
    PassageSizes,
    Pieces,
    Reference,
    cut_passages,
    share_passages,
)

SIZES = PassageSizes(64, 128, 512)


def expand(pieces: Pieces, texts: Sequence[str]) -> str:
    """Restore a text from its pieces and the earlier texts."""
    return "".join(
        piece if isinstance(piece, str) else texts[piece.source][piece.start : piece.end]
        for piece in pieces
    )


def words(seed: int, count: int, *, line: int = 9) -> str:
    choose = random.Random(seed)
    return "".join(
        f"{choose.getrandbits(40):x}{chr(10) if i % line == line - 1 else ' '}"
        for i in range(count)
    )


# Texts that share much with each other: concatenations, edits and slices of a few long ones.
PARTS = st.one_of(
    st.builds(lambda seed: words(seed, 80), st.integers(0, 3)),
    st.builds(lambda seed, at: words(seed, 80)[at:], st.integers(0, 3), st.integers(0, 300)),
    st.text(max_size=40),
    st.sampled_from(["ä" * 100, "\ud800" * 70, "\U0001f600\n" * 40, "\n" * 200, "a" * 700]),
)
TEXTS = st.lists(st.lists(PARTS, max_size=4).map("".join), max_size=6)


@settings(max_examples=150, deadline=None)
@given(texts=TEXTS)
def test_references_give_the_text_back_and_lead_to_kept_text(texts: list[str]) -> None:
    shared = share_passages(texts, sizes=SIZES)
    assert [expand(pieces, texts) for pieces in shared] == texts
    for at, pieces in enumerate(shared):
        for piece in pieces:
            if isinstance(piece, Reference):
                assert piece.source < at
                assert piece.end - piece.start >= SIZES.min_bytes
                target = texts[piece.source][piece.start : piece.end]
                assert any(isinstance(p, str) and target in p for p in shared[piece.source])


@settings(max_examples=60, deadline=None)
@given(texts=TEXTS)
def test_a_text_depends_on_those_before_it_alone(texts: list[str]) -> None:
    shared = share_passages(texts, sizes=SIZES)
    for end in range(len(texts)):
        assert share_passages(texts[:end], sizes=SIZES) == shared[:end]


@settings(max_examples=100, deadline=None)
@given(text=st.lists(PARTS, max_size=5).map("".join))
def test_passages_cover_the_text_and_keep_to_their_sizes(text: str) -> None:
    passages = cut_passages(text, sizes=SIZES)
    pieces = [text[passage.start : passage.end] for passage in passages]
    assert "".join(pieces) == text
    lengths = [len(piece.encode("utf-8", "surrogatepass")) for piece in pieces]
    assert all(length <= SIZES.max_bytes for length in lengths)
    assert all(length >= SIZES.min_bytes - 3 for length in lengths[:-1])


def test_cuts_follow_the_content() -> None:
    text = words(1, 4000)
    shared = share_passages([text, "Something new.\n" + text], sizes=SIZES)
    kept = sum(len(piece) for piece in shared[1] if isinstance(piece, str))
    assert kept < 2 * SIZES.max_bytes
    assert cut_passages(words(2, 900), sizes=SIZES) == cut_passages(words(2, 900), sizes=SIZES)


def test_passages_end_with_a_line_and_have_the_mean_length() -> None:
    text = words(3, 8000)
    passages = cut_passages(text, sizes=SIZES)
    ends = [text[passage.end - 1] for passage in passages[:-1]]
    assert ends.count("\n") > 0.9 * len(ends)
    assert 0.5 * SIZES.avg_bytes < len(text) / len(passages) < 2.5 * SIZES.avg_bytes


def test_a_text_read_twice_becomes_one_reference() -> None:
    texts = [words(4, 500), "short", words(4, 500), "short", words(4, 500)]
    shared = share_passages(texts, sizes=SIZES)
    whole = (Reference(0, 0, len(texts[0])),)
    assert shared == [(texts[0],), ("short",), whole, ("short",), whole]


def test_a_text_without_lines_is_cut_too() -> None:
    text = words(5, 2000).replace("\n", " ")
    shared = share_passages([text, text[1000:] + "!"], sizes=SIZES)
    assert sum(len(piece) for piece in shared[1] if isinstance(piece, str)) < 1200


def test_time_grows_with_the_length_alone() -> None:
    """Lines run, which are the same on every machine: quadratic work would run 64 times as many."""

    def lines_run(size: int) -> int:
        texts = [words(6, size), words(7, size) + words(6, size), "a" * size * 10]
        num_lines = 0

        def count(frame: FrameType, event: str, argument: object) -> Any:
            nonlocal num_lines
            num_lines += event == "line"
            return count

        before = sys.gettrace()
        sys.settrace(count)
        try:
            share_passages(texts, sizes=SIZES)
        finally:
            sys.settrace(before)
        return num_lines

    assert lines_run(16_000) < 10 * lines_run(2000)
