"""Cache breakpoints are fields, wherever they stand and however a client spells them."""

import json

import pytest

from ragboost.requests.json_body import JsonBody
from ragboost.requests.marked_messages import unmarked

_MARK = {"type": "ephemeral"}


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": [{"role": "user", "content": "hi", "cache_control": _MARK}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "cache_control": _MARK}]}]},
        {"tools": [{"function": {"parameters": {}}, "prompt_cache_breakpoint": True}]},
    ],
)
def test_a_breakpoint_is_found_wherever_it_stands(fields: dict[str, object]) -> None:
    written = json.dumps(fields)
    assert JsonBody(written.encode()).has_marks
    assert JsonBody(written.replace("cache", "c\\u0061che").encode()).has_marks


def test_a_text_about_breakpoints_is_none() -> None:
    body = JsonBody(json.dumps({"messages": [{"content": 'Set {"cache_control": 1}.'}]}).encode())
    assert not body.has_marks


def test_a_message_is_kept_without_its_breakpoints() -> None:
    message = {"role": "user", "content": [{"type": "text", "text": "a", "cache_control": _MARK}]}
    body = JsonBody(json.dumps({"messages": [message]}).encode())
    assert b"cache_control" not in unmarked(bytes(body.messages[0]), body)
