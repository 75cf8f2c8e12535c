"""A body keeps the client's bytes, whatever numbers and strings it holds."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragboost.requests.json_body import JsonBody, MalformedBodyError

NUMBERS = (
    "1e400",
    "-1E400",
    "1.10",
    "0.1e1",
    "1e-400",
    "-0.0",
    "12345678901234567890123",
    "7",
)
ODD = ("NaN", "-Infinity", '"\\ud800"')
TEXTS = ("plain", "café", "合同", "\ud800", "\U0001f600", "\u2028", '"', "\x00")


def rewritten(raw: bytes) -> bytes:
    """Encode a body whose last message has another content and whose first documents is moved."""
    body = JsonBody(raw)
    *rest, last = body.fields["messages"]
    fields = {**body.fields, "messages": [*rest, {**last, "content": "new"}]}
    fields["documents"] = fields["documents"][::-1]
    return body.encode(fields)


RAW = """{ "temperature" : NUM, "x": {"a" :[NUM, ODD ]}, "documents": [{"score": NUM} ,"b"],
    "messages": [{"role":"system", "x": NUM}, {"role":"user","content":"old","x":NUM,"y":ODD}],
    "odd": ODD }"""
EXPECTED = (
    '{"temperature":NUM,"x":{"a" :[NUM, ODD ]},"documents":["b",{"score": NUM}],'
    '"messages":[{"role":"system", "x": NUM},{"role":"user","content":"new","x":NUM,"y":ODD}],'
    '"odd":ODD}'
)


def with_values(text: str, number: str, odd: str) -> str:
    return text.replace("NUM", number).replace("ODD", odd)


@pytest.mark.parametrize("number", NUMBERS)
def test_numbers_go_on_as_the_client_wrote_them(number: str) -> None:
    raw, expected = (with_values(text, number, "null") for text in (RAW, EXPECTED))
    assert rewritten(raw.encode()).decode() == expected


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("number", ["1.10", "12345678901234567890123", "7", "-0"])
def test_a_body_that_only_engines_read_means_the_same(number: str, odd: str) -> None:
    raw, expected = (with_values(text, number, odd) for text in (RAW, EXPECTED))
    assert repr(json.loads(rewritten(raw.encode()))) == repr(json.loads(expected))


@pytest.mark.parametrize("raw", [b"{}", b" \n{ } ", b'{"messages":[]}', b'{"a" : NaN }'])
def test_an_unchanged_body_is_the_clients(raw: bytes) -> None:
    body = JsonBody(raw)
    assert body.encode(dict(body.fields)) == raw


def test_lone_surrogates_in_names_stay_escapes() -> None:
    body = JsonBody(b'{"\\ud800": 1, "messages": [{"\\udfff": 2}], "x": [NaN]}')
    encoded = body.encode({**body.fields, "messages": [{"a\ud801": 1.5}]})
    assert encoded == b'{"\\ud800":1,"messages":[{"a\\ud801":1.5}],"x":[NaN]}'


@pytest.mark.parametrize("text", ["[1]", "nul", "", "{", '"a"', '{"a":1}}', "\ufeff{}"])
def test_what_is_no_object_is_malformed(text: str) -> None:
    with pytest.raises(MalformedBodyError):
        JsonBody(text.encode())


def nested(depth: int) -> bytes:
    return (
        b'{"a":' * (depth // 2)
        + b"[" * (depth - depth // 2)
        + b"]" * (depth - depth // 2)
        + b"}" * (depth // 2)
    )


def test_depth_is_limited_without_recursion() -> None:
    assert JsonBody(nested(128)).fields
    with pytest.raises(MalformedBodyError, match="128 levels"):
        JsonBody(nested(129))


def test_messages_keep_their_bytes_whatever_a_later_one_contains() -> None:
    """So a resent history is recognised, although only the `json` module reads the body."""
    first, last = b'{"role":  "user", "content": "a"}', rb'{"content": "\ud800", "role": "user"}'
    body = JsonBody(b'{"model": "m", "messages" : [' + first + b" , " + last + b"]}")

    assert [bytes(element) for element in body.elements("messages")] == [first, last]


@given(st.lists(st.sampled_from(TEXTS), min_size=1, max_size=3).map("".join), st.sampled_from(ODD))
def test_a_message_is_written_alike_whatever_else_the_body_contains(text: str, odd: str) -> None:
    """So a rewritten message of a resent history keeps its bytes under any later message."""
    message = {"role": "user", "content": text, "number": 1.5}
    bodies = (f'{{"messages": [{{"content": {other}}}]}}' for other in ('"plain"', odd))
    first, second = (JsonBody(body.encode()).encode_bytes(message) for body in bodies)

    assert first == second
    assert json.loads(first) == message
