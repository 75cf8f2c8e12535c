"""Two spellings of one message have one normal form where the engine reads them alike."""

from typing import Any

import pytest

from ragboost.requests.wires.normal_form import (
    EngineKind,
    normal_instructions,
    normal_message,
    normal_tool,
)

MARK = {"cache_control": {"type": "ephemeral"}}
TEXT = {"type": "text", "text": "Hi."}
ALL: tuple[EngineKind, ...] = ("vllm", "sglang", "hosted", "")
ENGINES: tuple[EngineKind, ...] = ("vllm", "sglang")
NULLS = {"refusal": None, "annotations": [], "tool_calls": None, "function_call": None}


def call(arguments: Any, **fields: Any) -> dict[str, Any]:
    function = {"name": "w", "arguments": arguments}
    made = {"id": "t", "type": "function", "function": function, **fields}
    return {"role": "assistant", "content": None, "tool_calls": [made]}


@pytest.mark.parametrize(
    ("one", "other", "kinds"),
    [
        ({"role": "user", "content": "Hi."}, {"content": [{**TEXT, **MARK}], "role": "user"}, ALL),
        ({"role": "assistant", "content": "Hi."}, {"content": "Hi.", "role": "assistant"}, ALL),
        ({"role": "a", "content": "Hi.", **NULLS}, {"role": "a", "content": "Hi."}, ALL),
        (call("{}"), {**call("{}"), "content": ""}, ALL),
        ({"role": "assistant", "content": ""}, {"role": "assistant", "content": None}, ALL),
        ({"type": "x", "content": "Hi."}, {"type": "y", "content": "Hi."}, ()),
        (call('{"a":1,"b":2}'), call('{"a": 1, "b": 2}'), ("vllm", "sglang", "")),
        (call(""), call("{}"), ("vllm", "sglang", "")),
        (call('{"a": 1'), call("{}"), ("vllm",)),
        (call('{"a": 1, "b": 2}'), call('{"b": 2, "a": 1}'), ()),
        (call("{}"), call("{}", index=0), ENGINES),
        (call('{"a": null}'), call("{}"), ()),
        ({"role": "a", "content": "x", "id": "1"}, {"role": "a", "content": "x"}, ENGINES),
        (
            {"role": "a", "content": "x", "reasoning": "r"},
            {"role": "a", "content": "x", "reasoning_content": "r"},
            ENGINES,
        ),
        (
            {"role": "tool", "tool_call_id": "t", "content": [TEXT, TEXT]},
            {"role": "tool", "tool_call_id": "t", "content": "Hi.\nHi."},
            ("vllm",),
        ),
        (
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "r"}, TEXT]},
            {
                "role": "assistant",
                "content": [{"type": "thinking", "thinking": "r", "signature": "s"}, TEXT],
            },
            ENGINES,
        ),
        (
            {"role": "user", "content": [TEXT, {"type": "text", "text": ""}]},
            {"role": "user", "content": "Hi."},
            ENGINES,
        ),
        (
            {"type": "message", "role": "user", "content": "Hi."},
            {"role": "user", "content": "Hi."},
            ALL,
        ),
        ({"role": "user", "content": "Hi."}, {"role": "user", "content": "Hi. "}, ()),
        ({"role": "user", "content": "Hi."}, {"role": "user", "content": "Hi.", "name": "x"}, ()),
    ],
)
def test_two_messages_are_the_same_prompt_for_some_kinds(
    one: Any, other: Any, kinds: tuple[EngineKind, ...]
) -> None:
    for kind in ALL:
        first, second = normal_message(one, kind), normal_message(other, kind)
        assert (repr(first) == repr(second)) is (kind in kinds), kind


@pytest.mark.parametrize(
    ("one", "other", "kinds"),
    [
        ([{**TEXT, **MARK}], "Hi.", ALL),
        ([TEXT, TEXT], "Hi.Hi.", ("vllm",)),
        ([TEXT, TEXT], "Hi.\nHi.", ("sglang",)),
        ([{"type": "text", "text": "x-anthropic-billing-header: cch=1;"}, TEXT], "Hi.", ("vllm",)),
    ],
)
def test_instructions_are_joined_as_the_engine_joins_them(
    one: Any, other: Any, kinds: tuple[EngineKind, ...]
) -> None:
    for kind in ALL:
        is_same = normal_instructions(one, kind) == normal_instructions(other, kind)
        assert is_same is (kind in kinds), kind


def test_a_tool_keeps_the_order_of_its_schema() -> None:
    one = {"type": "function", "function": {"name": "f", "parameters": {"a": 1, "b": 2}}}
    other = {"function": {"parameters": {"a": 1, "b": 2}, "name": "f"}, "type": "function", **MARK}
    turned = {"type": "function", "function": {"name": "f", "parameters": {"b": 2, "a": 1}}}
    for kind in ALL:
        first = repr(normal_tool(one, kind))
        assert (first == repr(normal_tool(other, kind))) is (kind in ENGINES)
        assert first != repr(normal_tool(turned, kind))


@pytest.mark.parametrize("odd", [None, 3, [], "x", [None, 1], {"content": [None, {"text": 3}]}])
def test_odd_values_are_left(odd: Any) -> None:
    for kind in ALL:
        normal_message(odd, kind)
        normal_instructions(odd, kind)
        normal_tool(odd, kind)


def test_arguments_nested_too_deeply_to_be_parsed_are_left() -> None:
    deep = "[" * 100_000
    assert normal_message(call(deep), "sglang")["tool_calls"][0]["function"]["arguments"] == deep
