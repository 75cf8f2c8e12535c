"""A prompt cut at its chunks is the same text, and a chunk has the same ids wherever it stands."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ragboost.engine.builtin import build_tokenizer
from ragboost.engine.text.cutting import (
    TextSpan,
    cut_text,
    cut_tokens,
    find_documents,
    find_in_messages,
)
from ragboost.engine.text.tokenizer import ChatTokenizer

TOKENIZER = ChatTokenizer(build_tokenizer())


def encode(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special_tokens=False)


def test_a_chunk_has_the_same_ids_in_every_place() -> None:
    texts = ["The first document.", "Another one, longer.", "And a third."]
    chunks = []
    for order in ([0, 1, 2], [2, 0, 1], [1, 2, 0]):
        prompt = "System.\n" + "\n\n".join(texts[i] for i in order) + "\n\nWhat?"
        spans = [
            TextSpan(prompt.index(texts[i]), prompt.index(texts[i]) + len(texts[i])) for i in order
        ]
        cut = cut_text(prompt, spans, encode)
        assert TOKENIZER.decode(cut.token_ids) == prompt
        chunks.append({order[place]: chunk for place, chunk in enumerate(cut.chunks)})
        assert all(part.is_chunk for part in cut.parts), "white space belongs to chunks"
    assert chunks[0] == chunks[1] == chunks[2]


def test_text_between_chunks_is_a_part_that_is_no_chunk() -> None:
    cut = cut_text("S <a>one</a> <b>two</b> Q", [TextSpan(5, 8), TextSpan(16, 19)], encode)
    kinds = [(TOKENIZER.decode(part.tokens), part.is_chunk) for part in cut.parts]
    assert kinds == [("one", True), ("</a> <b>", False), ("two", True)]
    assert TOKENIZER.decode(cut.system) == "S <a>"
    assert TOKENIZER.decode(cut.question) == "</b> Q"


def test_a_system_prompt_may_end_before_the_first_chunk() -> None:
    cut = cut_text("system|history|chunk|question", [TextSpan(15, 20)], encode, system_end=7)
    assert TOKENIZER.decode(cut.system) == "system|"
    assert [part.is_chunk for part in cut.parts] == [False, True]


def test_something_is_left_to_compute_where_nothing_follows_the_last_chunk() -> None:
    cut = cut_text("one two", [TextSpan(0, 4), TextSpan(4, 7)], encode)
    assert TOKENIZER.decode(cut.question) == "two"
    assert cut_tokens([1, 2, 3], [TextSpan(1, 3)]).question == (2, 3)
    assert cut_text("only a question", [], encode).token_ids == encode("only a question")


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=60), st.lists(st.integers(0, 60), max_size=8, unique=True))
def test_any_cut_gives_the_same_text(text: str, borders: list[int]) -> None:
    borders = sorted(min(border, len(text)) for border in borders)
    pairs = zip(borders[::2], borders[1::2], strict=False)
    spans = [TextSpan(start, stop) for start, stop in pairs if start < stop]
    cut = cut_text(text, spans, encode)
    assert TOKENIZER.decode(cut.token_ids, skip_special_tokens=False) == text


def test_token_prompts_are_cut_as_they_are() -> None:
    tokens = list(range(20))
    cut = cut_tokens(tokens, [TextSpan(3, 7), TextSpan(9, 12)])
    assert cut.token_ids == tokens
    assert cut.system == (0, 1, 2)
    assert cut.chunks == [(3, 4, 5, 6), (9, 10, 11)]


def test_chunks_of_messages_are_found_in_the_rendered_conversation() -> None:
    messages = [
        {"role": "user", "content": "one two?"},
        {"role": "assistant", "content": "yes"},
        {"role": "user", "content": "  one three  "},
    ]
    spans = {0: [TextSpan(0, 3)], 2: [TextSpan(2, 5), TextSpan(6, 11)]}
    verbatim = "<u>one two?<a>yes<u>  one three  <a>"
    found = find_in_messages(verbatim, messages, spans)
    assert [verbatim[a:b] for a, b in found] == ["one", "one", "three"]
    assert found[1].start == verbatim.index("  one") + 2
    trimmed = "<u>one two?<a>yes<u>one three<a>"
    found = find_in_messages(trimmed, messages, spans)
    assert [trimmed[a:b] for a, b in found] == ["one", "one", "three"]
    assert find_in_messages("<u>changed<a>", messages, spans) == []


@pytest.mark.parametrize("title", ["Title", "", None])
def test_documents_are_found_with_their_titles(title: str | None) -> None:
    documents = [{"title": title, "text": "first text"}, {"text": "second text"}]
    head = f"{title}\n" if title else ""
    text = f"S {head}first text\n\nsecond text\n\nQ"
    found = find_documents(text, [*documents, {"text": "not there"}, {"data": 3}])
    assert [text[a:b] for a, b in found] == [f"{head}first text", "second text"]
