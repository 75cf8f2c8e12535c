"""Cached tokens are read on the side, in the shapes of several engines and providers."""

import json
from typing import Any

import pytest

from ragboost.cache_sync.usage import Usage
from ragboost.proxy.upstream.usage_taps import JsonTap, StreamTap, StrippingTap

OPENAI = {"usage": {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 4}}}
ANTHROPIC = {
    "message": {"usage": {"input_tokens": 5, "cache_read_input_tokens": 3}},
    "type": "message_start",
}


@pytest.mark.parametrize(
    ("answer", "usage"),
    [
        (OPENAI, Usage(9, 4)),
        (ANTHROPIC["message"], Usage(8, 3, 0)),
        ({"usage": {"prompt_tokens": 9}}, Usage(9)),
        ({"usage": None}, None),
        ({"usage": 3, "choices": []}, None),
        ([], None),
    ],
)
def test_usage_of_a_whole_answer(answer: Any, usage: Usage | None) -> None:
    tap = JsonTap()
    body = json.dumps(answer).encode()
    assert tap.feed(body) == body
    tap.finish()
    assert tap.usage == usage


@pytest.mark.parametrize(("event", "usage"), [(OPENAI, Usage(9, 4)), (ANTHROPIC, Usage(8, 3, 0))])
def test_usage_of_a_stream(event: Any, usage: Usage) -> None:
    tap = StreamTap()
    tap.feed(b"data: " + json.dumps(event).encode() + b"\n\ndata: [DONE]\n\n")
    tap.finish()
    assert tap.usage == usage


RESPONSES = {
    "type": "response.completed",
    "response": {
        "output": [{"type": "message", "content": [{"type": "output_text", "text": "x" * 90_000}]}],
        "usage": {"input_tokens": 9, "input_tokens_details": {"cached_tokens": 4}},
    },
}


def stream(*events: Any, tap: Any, step: int) -> Any:
    body = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)
    sent = b"".join(tap.feed(body[at : at + step]) for at in range(0, len(body), step))
    sent += tap.finish()
    return body, sent


@pytest.mark.parametrize("step", [1 << 20, 7919, 100])
@pytest.mark.parametrize("tap", [StreamTap, StrippingTap])
def test_usage_at_the_beginning_of_a_long_stream_is_read(tap: type, step: int) -> None:
    words = [
        {"type": "content_block_delta", "delta": {"text": f'word {i} "usage":{{}}'}}
        for i in range(3000)
    ]
    end = {"type": "message_delta", "usage": {"output_tokens": 3000}}
    made = tap()
    body, sent = stream(ANTHROPIC, *words, end, tap=made, step=step)
    assert sent == body
    assert made.usage == Usage(8, 3, 0)


@pytest.mark.parametrize("step", [1 << 20, 1000])
def test_usage_in_an_event_longer_than_what_is_kept_is_read(step: int) -> None:
    made = StreamTap()
    stream(
        {"type": "response.created", "response": {"usage": None}}, RESPONSES, tap=made, step=step
    )
    assert made.usage == Usage(9, 4)


def test_later_and_fuller_usage_of_a_stream_counts() -> None:
    later = {
        "type": "message_delta",
        "usage": {"input_tokens": 6, "cache_read_input_tokens": 4, "output_tokens": 2},
    }
    made = StreamTap()
    stream(ANTHROPIC, later, tap=made, step=50)
    assert made.usage == Usage(10, 4, 0)
