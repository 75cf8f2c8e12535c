"""The text, length and end of an answer are read from the bytes of its response, or it is left."""

import json
from typing import Any

import pytest

from ragboost.proxy.quality.given_answer import (
    MAX_BYTES,
    AnswerTap,
    GivenAnswer,
    UncheckedError,
)

USAGE = {"prompt_tokens": 9, "completion_tokens": 3}


def read(*chunks: bytes) -> GivenAnswer:
    tap = AnswerTap()
    for chunk in chunks:
        tap.feed(chunk)
    return tap.read()


def whole(**choice: Any) -> bytes:
    choice = {"index": 0, "finish_reason": "stop", **choice}
    return json.dumps({"choices": [choice], "usage": USAGE}).encode()


def stream(*events: dict[str, Any]) -> bytes:
    return b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)


def test_a_chat_answer_is_read() -> None:
    logprobs = {"content": [{"token": "a", "logprob": -0.5}, {"token": "b", "logprob": -1.0}]}
    found = read(whole(message={"role": "assistant", "content": "a b"}, logprobs=logprobs))

    assert found == GivenAnswer("a b", 3, True, [-0.5, -1.0])


def test_a_text_answer_is_read() -> None:
    found = read(whole(text="a b", finish_reason="length", logprobs={"token_logprobs": [None, -2]}))

    assert found == GivenAnswer("a b", 3, False, [-2.0])


def test_a_stream_is_read_wherever_it_is_cut() -> None:
    data = stream(
        {"choices": [{"index": 0, "delta": {"role": "assistant", "content": "a "}}]},
        {"choices": [{"index": 0, "delta": {"content": "b"}, "finish_reason": "stop"}]},
        {"choices": [], "usage": USAGE},
    )
    data += b"data: [DONE]\n\n"
    pieces = [data[at : at + 7] for at in range(0, len(data), 7)]

    assert read(*pieces) == GivenAnswer("a b", 3, True, [])


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (whole(message={"content": None, "tool_calls": [{"id": "1"}]}), "not_text"),
        (whole(message={"content": "x", "reasoning_content": "hm"}), "not_text"),
        (whole(message={"content": ["x"]}), "not_text"),
        (whole(message={"content": "x"}, finish_reason="content_filter"), "not_text"),
        (whole(message={"content": ""}), "not_text"),
        (whole(message={"content": "x"}, index=1), "several_choices"),
        (b"{" + b" " * MAX_BYTES, "too_long"),
        (b'{"choices": 7}', "not_text"),
        (b"\xff", "not_text"),
        (b"", "not_text"),
        (stream({"error": {"message": "no"}}), "not_text"),
    ],
)
def test_what_cannot_be_checked_says_why(data: bytes, reason: str) -> None:
    with pytest.raises(UncheckedError, match=reason):
        read(data)
