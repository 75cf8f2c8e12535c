"""Cached tokens are read on the side, in the shapes of several engines and providers."""

import json
from typing import Any

import pytest

from ragboost.engine_hooks.usage import Usage
from ragboost.proxy.usage import JsonTap, StreamTap

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
