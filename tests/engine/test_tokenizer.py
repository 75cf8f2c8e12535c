"""The tokenizer, its chat template and the text stream."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ragboost.engine.builtin import build_tokenizer
from ragboost.engine.tokenizer import ChatTokenizer, TextStream
from ragboost.errors import RequestError

TOKENIZER = ChatTokenizer(build_tokenizer())


def streamed(ids: list[int], *, stop: tuple[str, ...] = ()) -> str:
    stream = TextStream(TOKENIZER, stop=stop)
    pieces = [stream.push(token) for token in ids]
    return "".join([*pieces, stream.finish()])


@settings(max_examples=60, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"])).filter(lambda text: "<|" not in text))
def test_text_survives_encoding_and_streaming(text: str) -> None:
    ids = TOKENIZER.encode(text)
    assert TOKENIZER.decode(ids) == text
    assert streamed(ids) == text


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(3, 4095), max_size=40), st.text("aeiou nt", min_size=1, max_size=3))
def test_stream_stops_in_front_of_a_stop_string(ids: list[int], stop: str) -> None:
    whole = streamed(ids)
    assert streamed(ids, stop=(stop,)) == whole.split(stop)[0]


def test_held_back_text_comes_when_it_cannot_be_a_stop_string() -> None:
    stream = TextStream(TOKENIZER, stop=["END."])
    pieces = [stream.push(token) for token in TOKENIZER.encode("an EN", add_special_tokens=False)]
    assert "".join(pieces) == "an "
    assert stream.finish() == "EN"
    assert not stream.is_stopped


def test_unfinished_character_is_held_back() -> None:
    stream = TextStream(TOKENIZER)
    ids = TOKENIZER.encode("\U0001f9ca")
    assert len(ids) > 1
    assert [stream.push(token) for token in ids] == [""] * (len(ids) - 1) + ["\U0001f9ca"]


def test_tokenizer_is_the_same_each_time() -> None:
    text = "Return the number of documents in the index, or raise KeyError."
    assert ChatTokenizer(build_tokenizer()).encode(text) == TOKENIZER.encode(text)
    assert 3 < len(text) / len(TOKENIZER.encode(text)) < 6


def test_template_puts_documents_between_system_text_and_conversation() -> None:
    text = TOKENIZER.render_chat(
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Who?"}],
        documents=[{"title": "T", "text": "first"}, {"text": "second"}],
    )
    assert text == (
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        "<|im_start|>documents\nT\nfirst\n\nsecond\n\n<|im_end|>\n"
        "<|im_start|>user\nWho?<|im_end|>\n<|im_start|>assistant\n"
    )


def test_template_kwargs_reach_the_template() -> None:
    messages = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "It was"}]
    text = TOKENIZER.render_chat(messages, template_kwargs={"continue_final_message": True})
    assert text.endswith("<|im_start|>assistant\nIt was")
    plain = TOKENIZER.render_chat(messages, template_kwargs={"add_generation_prompt": False})
    assert plain.endswith("It was<|im_end|>\n")


def test_conversation_that_the_template_cannot_take_is_refused() -> None:
    with pytest.raises(RequestError, match="chat template failed"):
        TOKENIZER.render_chat([{"role": "user", "content": "x"}], template_kwargs={"tokenize": 1})
