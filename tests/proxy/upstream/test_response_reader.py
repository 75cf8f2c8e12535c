"""Usage and messages are read from responses of every kind, however they are cut into chunks."""

import json
from typing import Any

import pytest

from ragboost.proxy.upstream import response_reader as module
from ragboost.proxy.upstream.response_reader import ResponseReader
from ragboost.requests.json_body import encode_json
from ragboost.requests.wires.usage import Usage

CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": "ü"}'}}
OPENAI = {"usage": {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 4}}}
ANTHROPIC = {
    "message": {"usage": {"input_tokens": 5, "cache_read_input_tokens": 3}},
    "type": "message_start",
}
RESPONSES = {
    "type": "response.completed",
    "response": {
        "output": [{"type": "message", "content": [{"type": "output_text", "text": "x" * 90_000}]}],
        "usage": {"input_tokens": 9, "input_tokens_details": {"cached_tokens": 4}},
    },
}


def chunks(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


def read_messages(
    data: bytes, *, is_stream: bool, cut: int = 10**9, is_whole: bool = True
) -> list[Any]:
    found: list[Any] = []
    reader = ResponseReader(on_messages=found.append)
    reader.start(is_stream=is_stream)
    assert b"".join(map(reader.feed, chunks(data, cut))) == data
    if is_whole:
        reader.finish()
    return found


def events(*deltas: dict[str, Any], index: int = 0, done: bool = True) -> bytes:
    lines = [{"choices": [{"index": index, "delta": delta}]} for delta in deltas]
    return stream(*lines) + (b"data: [DONE]\n\n" if done else b"")


def stream(*answers: Any) -> bytes:
    return b"".join(b"data: " + json.dumps(answer).encode() + b"\n\n" for answer in answers)


def piece(arguments: str, **fields: Any) -> dict[str, Any]:
    return {"tool_calls": [{"index": 0, "function": {"arguments": arguments}, **fields}]}


@pytest.mark.parametrize("cut", [1, 7, 1000])
def test_a_streamed_message_is_joined_however_the_stream_is_cut(cut: int) -> None:
    head = {"tool_calls": [{"index": 0, "id": "c1", "function": {"name": "f", "arguments": ""}}]}
    data = events({"role": "assistant", "content": "Lo"}, {"content": "ok."}, head)
    data = data.replace(b"data: [DONE]\n\n", b": a comment\r\n\r\n")
    data += events(piece('{"a"'), piece(': "ü"}'))
    message = {"role": "assistant", "content": "Look.", "tool_calls": [CALL]}
    assert read_messages(data, is_stream=True, cut=cut, is_whole=False) == [[message]]


def test_messages_are_reported_before_the_line_that_ends_the_stream_is_returned() -> None:
    found: list[Any] = []
    reader = ResponseReader(on_messages=found.append)
    reader.start(is_stream=True)
    reader.feed(events({"content": "so"}, done=False))
    assert not found
    reader.feed(b"data: [DONE]\n")
    assert found == [[{"role": "assistant", "content": "so"}]]
    assert reader.finish() == b""
    assert len(found) == 1


def test_every_choice_is_read() -> None:
    choices = [{"index": i, "message": {"role": "assistant", "content": str(i)}} for i in (0, 1)]
    found = read_messages(json.dumps({"choices": choices}).encode(), is_stream=False)
    assert [message["content"] for message in found[0]] == ["0", "1"]
    data = events({"content": "1"}, index=1, done=False) + events({"content": "0"})
    found = read_messages(data, is_stream=True)
    assert [message["content"] for message in found[0]] == ["0", "1"]


def test_a_message_keeps_every_field_and_every_number_as_it_was_written() -> None:
    raw = (
        b'{"role":"assistant","content":null,"refusal":null,"reasoning":"so",'
        b'"x":[1.0,1e400,12345678901234567890123]}'
    )
    [[message]] = read_messages(b'{"choices":[{"message":%b}]}' % raw, is_stream=False)
    assert encode_json(message).replace(b" ", b"") == raw
    [[message]] = read_messages(
        b'data: {"choices":[{"delta":%b}]}\n\ndata: [DONE]\n\n' % raw, is_stream=True
    )
    assert message["reasoning"] == "so"
    assert raw[raw.index(b"[") :] in encode_json(message).replace(b" ", b"") + b"}"


def test_a_message_keeps_lone_surrogates() -> None:
    raw = b'{"role":"assistant","content":"\\ud83d"}'
    [[message]] = read_messages(b'{"choices":[{"message":%b}]}' % raw, is_stream=False)
    assert encode_json(message) == raw


@pytest.mark.parametrize(
    "data", [b"", b"no", b"[]", b"{}", b'{"choices": 7}', b'{"choices": [7, {"message": 7}]}']
)
def test_a_body_of_another_shape_has_no_messages(data: bytes) -> None:
    assert read_messages(data, is_stream=False) == [[]]
    assert read_messages(b"data: " + data + b"\n\n", is_stream=True) == [[]]


@pytest.mark.parametrize("data", [stream({"error": {"message": "no"}}), b"data: no\n\n"])
def test_a_stream_with_an_error_has_no_messages(data: bytes) -> None:
    data = events({"content": "so"}, done=False) + data
    assert read_messages(data, is_stream=True) == [[]]


def test_messages_of_a_truncated_response_are_not_reported() -> None:
    data = events({"content": "so"}, done=False)
    assert read_messages(data, is_stream=True, is_whole=False) == []


def test_a_response_that_is_too_long_has_no_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_BYTES", 100)
    assert read_messages(events(*[{"content": "word"}] * 50), is_stream=True) == [[]]
    body = json.dumps({"choices": [{"message": {"content": "word" * 50}}]}).encode()
    assert read_messages(body, is_stream=False) == [[]]


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
def test_usage_of_a_json_response(answer: Any, usage: Usage | None) -> None:
    reader = ResponseReader()
    reader.start(is_stream=False)
    body = json.dumps(answer).encode()
    assert reader.feed(body) == body
    assert reader.finish() == b""
    assert reader.usage == usage


def test_a_byte_order_mark_hides_no_event() -> None:
    found: list[Any] = []
    reader = ResponseReader(on_messages=found.append)
    reader.start(is_stream=True)
    events = [{"choices": [{"index": 0, "delta": {"content": text}}]} for text in ("A", "da")]
    reader.feed(b"\xef\xbb\xbf" + b"".join(map(stream, events)) + b"data: [DONE]\n\n")
    assert found[0][0]["content"] == "Ada"


def read_usage_of(data: bytes, *, step: int, strips_usage: bool = False) -> tuple[Any, bytes]:
    reader = ResponseReader(strips_usage=strips_usage)
    assert reader.start(is_stream=True) == strips_usage
    sent = b"".join(map(reader.feed, chunks(data, step))) + reader.finish()
    return reader.usage, sent


@pytest.mark.parametrize(("event", "usage"), [(OPENAI, Usage(9, 4)), (ANTHROPIC, Usage(8, 3, 0))])
def test_usage_of_a_stream(event: Any, usage: Usage) -> None:
    data = stream(event) + b"data: [DONE]\n\n"
    assert read_usage_of(data, step=1 << 20) == (usage, data)


@pytest.mark.parametrize("step", [1 << 20, 7919, 100])
@pytest.mark.parametrize("strips_usage", [False, True])
def test_usage_at_the_beginning_of_a_long_stream_is_read(strips_usage: bool, step: int) -> None:
    words = [
        {"type": "content_block_delta", "delta": {"text": f'word {i} "usage":{{}}'}}
        for i in range(3000)
    ]
    data = stream(ANTHROPIC, *words, {"type": "message_delta", "usage": {"output_tokens": 3000}})
    assert read_usage_of(data, step=step, strips_usage=strips_usage) == (Usage(8, 3, 0), data)


@pytest.mark.parametrize("step", [1 << 20, 1000])
def test_usage_in_a_long_event_is_read(step: int) -> None:
    data = stream({"type": "response.created", "response": {"usage": None}}, RESPONSES)
    assert read_usage_of(data, step=step) == (Usage(9, 4), data)


def test_later_and_fuller_usage_of_a_stream_counts() -> None:
    later = {
        "type": "message_delta",
        "usage": {"input_tokens": 6, "cache_read_input_tokens": 4, "output_tokens": 2},
    }
    assert read_usage_of(stream(ANTHROPIC, later), step=50)[0] == Usage(10, 4, 0)


@pytest.mark.parametrize("step", [1, 50, 1 << 20])
def test_only_the_usage_event_that_the_proxy_asked_for_is_stripped(step: int) -> None:
    words = events({"content": "a"}, {"content": "b"}, done=False)
    last = b"data: [DONE]\n\n: the end"
    data = words + stream({"choices": [], **OPENAI}) + last
    assert read_usage_of(data, step=step, strips_usage=True) == (Usage(9, 4), words + last)
    assert read_usage_of(data, step=step) == (Usage(9, 4), data)


@pytest.mark.parametrize("end", ["\n\n", "\r\n\r\n"])
@pytest.mark.parametrize("step", [1, 1 << 20])
def test_what_else_stands_in_a_usage_event_is_kept(step: int, end: str) -> None:
    ours = '"choices": [], "usage": {"prompt_tokens": 9}, "id": "c", "service_tier": null'
    more = '"timings": {"ms": 1.0}, "prompt_filter_results": [{"n": 12345678901234567890123}]'
    event = f"data: {{{more}, {ours}}}{end}"
    sent = read_usage_of(event.encode(), step=step, strips_usage=True)[1].decode()
    kept = f'{{{more}, "choices": [], "id": "c", "service_tier": null}}'
    assert json.loads(sent.removeprefix("data: ")) == json.loads(kept)
    assert '{"ms": 1.0}' in sent
    assert sent.endswith("}" + end)
    plain = f'data: {{{ours}, "timings": null, "citations": []}}{end}'
    assert read_usage_of(plain.encode(), step=step, strips_usage=True)[1] == b""
    zero = plain.replace("null, ", '0, "is_cached": false, ', 1).replace("null, ", "0, ")
    assert b'"is_cached":' in read_usage_of(zero.encode(), step=step, strips_usage=True)[1]


def test_an_event_that_is_too_long_is_passed_on_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_EVENT_BYTES", 1000)
    data = stream(RESPONSES) + stream(OPENAI)
    assert read_usage_of(data, step=500, strips_usage=True) == (Usage(9, 4), data)


def test_held_bytes_of_a_truncated_stream_can_be_taken() -> None:
    reader = ResponseReader(strips_usage=True)
    reader.start(is_stream=True)
    assert reader.feed(b'data: {"choices"') == b""
    assert reader.take_held() == b'data: {"choices"'
