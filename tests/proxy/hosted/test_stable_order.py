"""The stable order: requests that differ in order only have equal prefixes, and no text changes."""

import json
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragboost.config import BackendSettings, Settings
from ragboost.proxy.hosted.stable_order import StableOrder
from tests.fakes import FakeEngine
from tests.fakes.proxy import ProxyServer, proxy_settings

MARK = {"type": "ephemeral"}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=10,
)
TOOLS = st.lists(
    st.fixed_dictionaries({"name": st.sampled_from("abc"), "input_schema": JSON}), max_size=4
)


def tool(name: str, **fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": fields}}


def stable(body: dict[str, Any]) -> bytes:
    return StableOrder().apply(json.dumps(body).encode())


def scrambled(value: Any) -> Any:
    """The same JSON with its keys in another order."""
    if isinstance(value, dict):
        return {name: scrambled(value[name]) for name in reversed(value)}
    return [scrambled(each) for each in value] if isinstance(value, list) else value


@given(TOOLS)
def test_tools_in_any_order_become_equal_and_keep_their_meaning(tools: list[Any]) -> None:
    body = {"model": "m", "tools": tools, "messages": [{"role": "user", "content": "x"}]}
    other = {**body, "tools": scrambled(tools[::-1])}

    sent = stable(body)

    assert json.loads(sent)["tools"] == json.loads(stable(other))["tools"]
    assert json.dumps(json.loads(sent)["tools"]) == json.dumps(json.loads(stable(other))["tools"])
    assert sorted(map(repr, map(_plain, json.loads(sent)["tools"]))) == sorted(
        map(repr, map(_plain, tools))
    )
    order = StableOrder()
    assert order.apply(sent) == sent


def _plain(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def test_what_is_in_order_keeps_its_bytes() -> None:
    raw = b'{ "tools": [ {"name" :"a"}, {"name":"b"} ], "n": 1.10, "messages": [] }'
    assert StableOrder().apply(raw) == raw
    assert StableOrder().apply(b"not JSON") == b"not JSON"


def test_numbers_and_texts_keep_their_digits_and_characters() -> None:
    raw = (
        b'{"tools":[{"name":"b","x":1e400},{"name":"a","x":1.10}],'
        b'"messages":[{"content":"\\ud800 b a"}]}'
    )
    sent = StableOrder().apply(raw)
    assert b'{"name":"a","x":1.10},{"name":"b","x":1e400}' in sent
    assert b'[{"content":"\\ud800 b a"}]' in sent


@pytest.mark.parametrize("field", ["messages", "input"])
def test_no_message_is_touched_neither_its_texts_nor_the_inputs_of_tool_calls(field: str) -> None:
    call = {"type": "tool_use", "name": "t", "input": {"b": 1, "a": {"d": 1, "c": 2}}}
    function = {"name": "t", "arguments": '{"b": 1, "a": 2}'}
    messages = [
        {"role": "assistant", "content": [{"type": "text", "text": '{"b": 1, "a": 2}'}, call]},
        {"role": "assistant", "tool_calls": [{"id": "1", "function": function}]},
        {"type": "tool_use", "input": {"b": 1, "a": 2}},
    ]
    raw = json.dumps(messages, indent=1)
    sent = StableOrder().apply(f'{{"tools": [{{"b": 1, "a": 2}}], "{field}": {raw}}}'.encode())
    assert raw.encode() in sent
    assert b'{"a":2,"b":1}' in sent


def test_nothing_moves_across_a_breakpoint() -> None:
    tools = [{"name": "b"}, {"name": "a", "cache_control": MARK}, {"name": "0"}]
    assert [each["name"] for each in json.loads(stable({"tools": tools}))["tools"]] == [
        "b",
        "a",
        "0",
    ]


def test_required_parameters_are_a_set_and_other_lists_are_not() -> None:
    default = {"properties": {}, "required": ["b", "a"]}
    inner = {"type": "object", "properties": {"x": {}}, "required": ["y", "x"]}
    schema = {
        "properties": {"a": {"enum": ["z", "y"], "default": default}, "b": inner},
        "required": ["b", "a"],
    }

    sent = json.loads(stable({"tools": [{"name": "t", "input_schema": schema}]}))["tools"][0]

    assert sent["input_schema"]["required"] == ["a", "b"]
    assert sent["input_schema"]["properties"]["b"]["required"] == ["x", "y"]
    assert sent["input_schema"]["properties"]["a"] == {"enum": ["z", "y"], "default": default}


@pytest.mark.parametrize("is_stable", [True, False])
def test_the_proxy_sends_equal_tools_only_if_it_is_asked_to(
    engine: FakeEngine, is_stable: bool
) -> None:
    tools = [tool("b", x=1, a=2), tool("a")]
    settings = proxy_settings(engine.url, stable="safe" if is_stable else "off")
    with ProxyServer(settings) as proxy:
        for each in (tools, scrambled(tools[::-1])):
            body = {"model": "m", "tools": each, "messages": [{"role": "user", "content": "x"}]}
            httpx.post(f"{proxy.url}/v1/chat/completions", json=body).raise_for_status()

    first, second = (json.dumps(received.json["tools"]) for received in engine.requests)
    assert (first == second) is is_stable
    assert (first == json.dumps(tools)) is not is_stable


BILLING = "x-anthropic-billing-header: cc_version=2.1.1; cch=0a1b2;"
RULES = {"type": "text", "text": "Follow the rules."}


@pytest.mark.parametrize(
    ("fields", "sent"),
    [
        ({"system": [{"type": "text", "text": BILLING}, RULES]}, {"system": [RULES]}),
        ({"system": f"{BILLING}\nFollow."}, {"system": "Follow."}),
        (
            {"system": [{"type": "text", "text": f"{BILLING}\nFollow."}]},
            {"system": [{"type": "text", "text": "Follow."}]},
        ),
        ({"system": [{"type": "text", "text": BILLING}]}, {"system": ""}),
        ({"system": [RULES, {"type": "text", "text": f"A {BILLING}"}]}, None),
        ({"system": [{"type": "text", "text": BILLING, "cache_control": MARK}]}, None),
        ({"messages": [{"role": "user", "content": BILLING}]}, None),
        (
            {"messages": [{"role": "system", "content": f"{BILLING}\nA"}, {"role": "user"}]},
            {"messages": [{"role": "system", "content": "A"}, {"role": "user"}]},
        ),
    ],
)
def test_a_line_for_another_provider_is_taken_out_of_the_instructions_alone(
    fields: dict[str, Any], sent: dict[str, Any] | None
) -> None:
    raw = json.dumps(fields).encode()
    order = StableOrder.of(Settings(stable="safe"))
    assert order is not None
    assert order.apply(raw) == raw if sent is None else json.loads(order.apply(raw)) == sent
    owner = BackendSettings(url="https://api.anthropic.com")
    kept = StableOrder.of(Settings(stable="safe", backend=owner))
    assert kept is not None
    assert kept.apply(raw) == raw
