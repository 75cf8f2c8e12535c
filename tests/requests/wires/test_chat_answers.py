"""Answers become messages with all that the backend said, streamed or not."""

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ragboost.requests.wires import chat_answers
from ragboost.requests.wires.chat_answers import AnswerDeltas, read_answers

Delta = dict[str, Any]


def merged(*deltas: Delta) -> Any:
    """Return the message of a stream, without what every message has."""
    reader = AnswerDeltas()
    for delta in deltas:
        assert reader.add({"choices": [{"index": 0, "delta": delta}]})
    [message] = reader.join()
    assert message.pop("role") == "assistant"
    return message


def calls(*parts: Delta | list[Delta]) -> list[Any]:
    """Return (id, name, arguments) of each call of a stream of parts, or lists of parts."""
    lists = [part if isinstance(part, list) else [part] for part in parts]
    message = merged(*[{"tool_calls": each} for each in lists])
    assert all("index" not in call and call["type"] == "function" for call in message["tool_calls"])
    return [
        (call["id"], call["function"].get("name"), call["function"].get("arguments"))
        for call in message["tool_calls"]
    ]


def part(name: str | None = None, arguments: str | None = None, **fields: Any) -> Delta:
    function = {"name": name, "arguments": arguments}
    return {**fields, "function": {k: v for k, v in function.items() if v is not None}}


MESSAGE = {
    "role": "assistant",
    "content": "Yes.",
    "refusal": None,
    "annotations": [],
    "reasoning": "because",
    "reasoning_content": "because",
    "reasoning_details": [{"type": "reasoning.text", "text": "b", "signature": "S", "index": 0}],
    "audio": {"id": "a", "data": "AAAA", "expires_at": 9, "transcript": "Yes."},
    "function_call": {"name": "f", "arguments": "{}"},
    "extra_content": {"google": {"thought_signature": "S"}},
    "tool_calls": [{"id": "t", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
    "x_unknown": [1, {"a": None}],
}


def test_a_whole_message_stays_as_it_came() -> None:
    [message] = read_answers({"choices": [{"message": MESSAGE}]})
    assert list(message.items()) == list(MESSAGE.items())


@pytest.mark.parametrize(
    ("message", "stored"),
    [
        ({"content": None}, {"content": "", "role": "assistant"}),
        ({}, {"role": "assistant", "content": ""}),
        ({"content": None, "tool_calls": []}, {"role": "assistant", "content": ""}),
        ({"content": "a", "tool_calls": None}, {"role": "assistant", "content": "a"}),
        ({"content": None, "refusal": "no"}, {**MESSAGE, "content": None}),
    ],
)
def test_a_message_that_servers_would_refuse_is_mended(message: Any, stored: Any) -> None:
    [read] = read_answers({"choices": [{"message": message}]})
    if message.get("refusal"):
        assert read == {"role": "assistant", "content": None, "refusal": "no"}
    else:
        assert read == stored


def test_another_id_begins_another_call_whatever_its_index() -> None:
    expected = [("t1", "read", '{"p": 1}'), ("t2", "read", '{"p": 2}')]
    first, second = part("read", '{"p": 1}', id="t1"), part("read", '{"p": 2}', id="t2")
    for index in ({"index": 0}, {}, {"index": None}):
        assert calls({**first, **index}, {**second, **index}) == expected
        assert calls([{**first, **index}, {**second, **index}]) == expected


def test_pieces_of_interleaved_calls_find_theirs() -> None:
    for index in ({"index": 0}, {}):
        pieces = [
            part("f", '{"a"', id="t1", **index),
            part("g", '{"b"', id="t2", **index),
            part(None, ": 1}", id="t1", **index),
            part(None, ": 2}", id="t2", **index),
        ]
        assert calls(*pieces) == [("t1", "f", '{"a": 1}'), ("t2", "g", '{"b": 2}')]


def test_pieces_without_an_index_or_id_continue_the_last_call() -> None:
    pieces = [part("f", "", id="t1"), part(None, '{"a"'), part(None, ": 1}")]
    assert calls(*pieces) == [("t1", "f", '{"a": 1}')]
    assert calls(part(None, "{}"), part("f", id="t1")) == [("t1", "f", "{}")]


def test_a_name_behind_complete_arguments_begins_another_call() -> None:
    expected = [("", "f", '{"a": 1}'), ("", "f", '{"a": 1}'), ("", "g", "{}")]
    for index in ({"index": 0}, {}):
        pieces = [part(name, arguments, **index) for _, name, arguments in expected]
        assert calls(*pieces) == expected
        assert calls(pieces) == expected


def test_a_name_or_an_id_that_is_repeated_with_every_piece_is_kept_once() -> None:
    for fields in ({"index": 0}, {}, {"index": 0, "id": "t1"}, {"id": "t1"}):
        pieces = [part("read_file", p, **fields) for p in ("", '{"a": {"b": 1}', ', "c"', ": 2}")]
        assert calls(*pieces) == [(fields.get("id", ""), "read_file", '{"a": {"b": 1}, "c": 2}')]


def test_a_name_in_pieces_is_joined_and_a_call_sent_twice_is_one() -> None:
    assert calls(part("get_", id="t", index=0), part("weather", "{}", index=0)) == [
        ("t", "get_weather", "{}")
    ]
    whole = part("f", '{"a": 1}', id="t", index=0)
    assert calls(whole, whole) == [("t", "f", '{"a": 1}')]


def test_calls_stand_in_the_order_of_their_indices() -> None:
    pieces = [part("b", "{}", id="2", index=1), part("a", "{}", id="1", index=0)]
    assert [name for _, name, _ in calls(*pieces)] == ["a", "b"]


def test_arguments_that_are_an_object_are_kept() -> None:
    call = {"id": "t", "function": {"name": "f", "arguments": {"a": 1}}}
    message = merged({"tool_calls": [call]}, {"tool_calls": [{**call, "id": "u"}]})
    assert [each["function"]["arguments"] for each in message["tool_calls"]] == [{"a": 1}] * 2


def test_every_field_of_a_stream_is_merged() -> None:
    extra = {"google": {"thought_signature": "S"}}
    assert merged(
        {"role": "assistant", "content": None, "reasoning_content": "Let"},
        {"reasoning_content": " me", "reasoning": "Let me", "x_format": "v1", "x_count": 1},
        {"refusal": "no", "x_format": "v1", "x_count": 2, "x_flag": True, "x_null": None},
        {"function_call": {"name": "f", "arguments": "{"}, "content": ""},
        {"function_call": {"name": "f", "arguments": "}"}, "extra_content": extra},
        {"audio": {"id": "a", "data": "AA", "transcript": "ha"}, "extra_content": extra},
        {"audio": {"id": "a", "data": "AA", "transcript": "ha", "expires_at": 9}},
    ) == {
        "content": "",
        "reasoning_content": "Let me",
        "reasoning": "Let me",
        "x_format": "v1",
        "x_count": 2,
        "x_flag": True,
        "refusal": "no",
        "function_call": {"name": "f", "arguments": "{}"},
        "extra_content": extra,
        "audio": {"id": "a", "data": "AAAA", "transcript": "haha", "expires_at": 9},
    }


def test_details_of_reasoning_are_merged_by_index_type_and_id() -> None:
    text, hidden = {"type": "reasoning.text", "index": 0}, {"type": "reasoning.encrypted"}
    details = merged(
        {"reasoning_details": [{**text, "text": "a", "format": "v1"}]},
        {"reasoning_details": [{**text, "text": "a", "format": "v1"}]},
        {"reasoning_details": [{**text, "signature": "S"}]},
        {"reasoning_details": [{**hidden, "index": 0, "id": "r1", "data": "AA"}]},
        {"reasoning_details": [{**hidden, "index": 1, "id": "r2", "data": "BB"}]},
        {"reasoning_details": [{**hidden, "id": "r1", "data": "aa"}]},
    )["reasoning_details"]
    assert details == [
        {**text, "text": "aa", "format": "v1", "signature": "S"},
        {**hidden, "index": 0, "id": "r1", "data": "AAaa"},
        {**hidden, "index": 1, "id": "r2", "data": "BB"},
    ]


@pytest.mark.parametrize("empty", [{}, {"signature": ""}, {"signature": None}])
def test_a_signature_ends_a_block_of_reasoning_that_comes_in_pieces(empty: Delta) -> None:
    """As LiteLLM streams Anthropic's."""
    pieces = [{"thinking": text, **empty} for text in ("Two ", "and two.")]
    pieces += [{"thinking": "", "signature": "S"}, {"thinking": "Then ", **empty}]
    deltas = [{"thinking_blocks": [{"type": "thinking", **piece}]} for piece in pieces]
    first, second = merged(*deltas)["thinking_blocks"]
    assert first == {"type": "thinking", "thinking": "Two and two.", "signature": "S"}
    assert second["thinking"] == "Then "


@pytest.mark.parametrize(
    ("event", "is_answer"),
    [
        ({"object": "error", "message": "engine died", "code": 500}, False),
        ({"error": {"message": "engine died"}, "choices": []}, False),
        ({"error": None, "choices": [{"index": 0, "delta": {"content": "A"}}]}, True),
    ],
)
def test_an_event_that_is_an_error_in_any_shape_ends_the_answer(
    event: Delta, is_answer: bool
) -> None:
    assert AnswerDeltas().add(event) == is_answer


def test_elements_that_have_no_name_stay_apart_but_texts_are_joined() -> None:
    sources = [{"type": "url_citation", "url_citation": {"url": url}} for url in ("a", "a", "b")]
    assert merged(*[{"annotations": [each]} for each in sources])["annotations"] == sources
    thinking = [{"type": "thinking", "thinking": [{"type": "text", "text": t}]} for t in "abc"]
    assert merged(*[{"content": [each]} for each in thinking], {"content": "so"}, {"content": "."})[
        "content"
    ] == [
        {"type": "thinking", "thinking": [{"type": "text", "text": "abc"}]},
        {"type": "text", "text": "so."},
    ]
    assert merged({"content": "a"}, {"content": [{"type": "image", "id": "i"}]})["content"] == [
        {"type": "text", "text": "a"},
        {"type": "image", "id": "i"},
    ]


names = st.sampled_from(["read_file", "f", "g"])
arguments = st.dictionaries(st.text(max_size=3), st.text(max_size=9), max_size=3).map(json.dumps)
texts = st.text(max_size=30)


@given(
    made=st.lists(st.tuples(names, arguments), min_size=1, max_size=4),
    reasoning=texts,
    content=texts,
    data=st.data(),
)
def test_a_message_is_the_same_however_servers_stream_it(
    made: list[tuple[str, str]], reasoning: str, content: str, data: st.DataObject
) -> None:
    has_ids, repeats = data.draw(st.booleans()), data.draw(st.booleans())
    indices = data.draw(st.sampled_from(["right", "zero", "missing"]))
    deltas: list[Delta] = [{"role": "assistant", "content": None}]
    deltas += [{"reasoning": piece} for piece in _cut(reasoning, data)]
    deltas += [{"content": piece} for piece in _cut(content, data)]
    for at, (name, text) in enumerate(made):
        index = {"right": {"index": at}, "zero": {"index": 0}, "missing": {}}[indices]
        fields = {**index, **({"id": f"t{at}"} if has_ids else {})}
        first, *rest = _cut(text, data)
        while repeats and not has_ids and rest and not rest[-1]:
            rest.pop()  # a name behind complete arguments, and nothing more, may be either
        deltas.append({"tool_calls": [part(name, first, type="function", **fields)]})
        fields = fields if repeats or data.draw(st.booleans()) else index
        deltas += [{"tool_calls": [part(name if repeats else None, p, **fields)]} for p in rest]
    message = merged(*deltas)
    assert message.get("reasoning", "") == reasoning
    assert (message["content"] or "") == content
    assert [
        (c["function"]["name"], c["function"]["arguments"]) for c in message["tool_calls"]
    ] == made
    if has_ids:
        assert [c["id"] for c in message["tool_calls"]] == [f"t{at}" for at in range(len(made))]


def _cut(text: str, data: st.DataObject) -> list[str]:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=4)))
    return [text[a:b] for a, b in pairwise([0, *cuts, len(text)])]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["id", "index", "type", "function", "name", "arguments", "text", "x"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)
fields = st.sampled_from(
    ["content", "tool_calls", "reasoning_details", "function_call", "audio", "x"]
)


@given(st.lists(st.dictionaries(fields, json_values, max_size=3), max_size=6))
@example([{"tool_calls": [None, {"id": None, "index": ""}]}])
def test_no_delta_breaks_the_reader(deltas: list[Delta]) -> None:
    reader = AnswerDeltas()
    for delta in deltas:
        assert reader.add({"choices": [{"delta": delta}]})
    json.dumps(reader.join())


@given(st.dictionaries(fields, json_values, max_size=4))
def test_a_message_that_is_streamed_at_once_keeps_its_values(message: Delta) -> None:
    for name, value in merged(_without(message, "index", "id")).items():
        if name not in ("tool_calls", "content"):
            assert value == _without(message[name], "index", "id")


def _without(value: Any, *left_out: str) -> Any:
    """Return a value without some fields and fields that are null."""
    if isinstance(value, dict):
        kept = {k: v for k, v in value.items() if v is not None and k not in left_out}
        return {k: _without(v, *left_out) for k, v in kept.items()}
    return [_without(v, *left_out) for v in value] if isinstance(value, list) else value


def test_a_message_nested_too_deeply_is_none() -> None:
    value: Any = "x"
    for _ in range(40):
        value = [value]
    assert read_answers({"choices": [{"message": {"content": "a", "x": value}}]}) == []
    assert not AnswerDeltas().add({"choices": [{"delta": {"x": value}}]})


def test_arguments_are_not_read_again_with_every_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[str] = []
    monkeypatch.setattr(chat_answers.json, "loads", decoded.append)
    calls(*[part("f", "}", index=0) for _ in range(1000)])
    assert len(decoded) <= 64
