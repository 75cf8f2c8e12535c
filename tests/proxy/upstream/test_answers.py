"""The assistant's message is read from answers of every kind, and from no broken one."""

import json
from typing import Any

import pytest

from ragboost.proxy.upstream import answers as module
from ragboost.proxy.upstream.answers import AnswerReader

CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": "ü"}'}}


def read(data: bytes, *, is_stream: bool, cut: int = 10**9, whole: bool = True) -> list[Any]:
    found: list[Any] = []
    reader = AnswerReader(found.append)
    reader.start(is_stream=is_stream, num_bytes=None)
    for at in range(0, len(data), cut):
        reader.feed(data[at : at + cut])
    if whole:
        reader.finish()
    return found


def events(*deltas: dict[str, Any], index: int = 0, done: bool = True) -> bytes:
    lines = [{"choices": [{"index": index, "delta": delta}]} for delta in deltas]
    data = b"".join(b"data: " + json.dumps(line).encode() + b"\n\n" for line in lines)
    return data + (b"data: [DONE]\n\n" if done else b"")


def piece(arguments: str, **fields: Any) -> dict[str, Any]:
    return {"tool_calls": [{"index": 0, "function": {"arguments": arguments}, **fields}]}


@pytest.mark.parametrize("cut", [1, 7, 1000])
def test_a_stream_is_put_together_however_it_is_cut(cut: int) -> None:
    head = {"tool_calls": [{"index": 0, "id": "c1", "function": {"name": "f", "arguments": ""}}]}
    data = events({"role": "assistant", "content": "Lo"}, {"content": "ok."}, head)
    data = data.replace(b"data: [DONE]\n\n", b": a comment\r\n\r\n")
    data += events(piece('{"a"'), piece(': "ü"}'))
    message = {"role": "assistant", "content": "Look.", "tool_calls": [CALL]}
    assert read(data, is_stream=True, cut=cut, whole=False) == [[message]]


def test_every_choice_is_read() -> None:
    choices = [{"index": i, "message": {"role": "assistant", "content": str(i)}} for i in (0, 1)]
    found = read(json.dumps({"choices": choices}).encode(), is_stream=False)
    assert [message["content"] for message in found[0]] == ["0", "1"]
    stream = events({"content": "1"}, index=1, done=False) + events({"content": "0"})
    assert [message["content"] for message in read(stream, is_stream=True)[0]] == ["0", "1"]


def test_a_message_keeps_content_and_tool_calls_only() -> None:
    message = {"role": "assistant", "content": None, "refusal": None, "tool_calls": [CALL]}
    data = json.dumps({"choices": [{"message": message}]}).encode()
    assert read(data, is_stream=False) == [
        [{"role": "assistant", "content": None, "tool_calls": [CALL]}]
    ]


@pytest.mark.parametrize(
    "data", [b"", b"no", b"[]", b"{}", b'{"choices": 7}', b'{"choices": [7, {"message": 7}]}']
)
def test_what_is_no_answer_gives_none(data: bytes) -> None:
    assert read(data, is_stream=False) == [[]]
    assert read(b"data: " + data + b"\n\n", is_stream=True) == [[]]


def test_a_stream_with_an_error_gives_none() -> None:
    data = events({"content": "so"}, done=False) + b'data: {"error": {"message": "no"}}\n\n'
    assert read(data, is_stream=True) == [[]]


def test_an_answer_that_is_cut_is_not_reported() -> None:
    assert read(events({"content": "so"}, done=False), is_stream=True, whole=False) == []


def test_an_answer_that_is_too_long_gives_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_BYTES", 100)
    assert read(events(*[{"content": "word"}] * 50), is_stream=True) == [[]]
