"""Citations of an answer, mapped while its bytes are relayed, in pieces of any size."""

import json
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from ragboost.proxy.upstream.mapped_answer import AnswerMapper, continued_text
from ragboost.requests.formats.citations import CitationMap

MOVED = CitationMap({"1": "3", "2": "1", "3": "2", "4": "12", "12": "4"}, words=("Document",))
TEXT = "The lease [1, 4] says so; see Documents 2 and 3, `a [1]`, not [7]. Document 4."
MAPPED = "The lease [3, 12] says so; see Documents 1 and 2, `a [1]`, not [7]. Document 12."
DONE = b"data: [DONE]\n\n"


def relayed(body: bytes, *, is_stream: bool, rng: random.Random, **request: Any) -> bytes:
    mapper = AnswerMapper(MOVED, continued=continued_text(request))
    mapper.start(is_stream=is_stream)
    received, at = b"", 0
    while at < len(body):
        size = rng.choice((1, 7, 50, 400))
        received += mapper.feed(body[at : at + size])
        at += size
    return received + mapper.finish()


def event(data: Any, name: str = "") -> bytes:
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(data)}\n\n".encode()


def pieces(text: str, rng: random.Random) -> Iterator[str]:
    at = 0
    while at < len(text):
        size = rng.randint(1, 5)
        yield text[at : at + size]
        at += size


def decoded(stream: bytes) -> list[Any]:
    lines = [line[6:] for line in stream.splitlines() if line.startswith(b"data: {")]
    return [json.loads(line) for line in lines]


def chat(text: str, rng: random.Random) -> Iterator[bytes]:
    for piece in pieces(text, rng):
        yield event({"choices": [{"index": 0, "delta": {"content": piece}}]})
    yield event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})


def completions(text: str, rng: random.Random) -> Iterator[bytes]:
    for piece in pieces(text, rng):
        yield event({"choices": [{"index": 0, "text": piece, "finish_reason": None}]})


def anthropic(text: str, rng: random.Random) -> Iterator[bytes]:
    block = {"type": "text", "text": ""}
    start = {"type": "content_block_start", "index": 1, "content_block": block}
    yield event(start, "content_block_start")
    for piece in pieces(text, rng):
        delta = {"type": "text_delta", "text": piece}
        yield event({"type": "content_block_delta", "index": 1, "delta": delta})
    yield event({"type": "content_block_stop", "index": 1}, "content_block_stop")


def responses(text: str, rng: random.Random) -> Iterator[bytes]:
    place = {"item_id": "m", "output_index": 0, "content_index": 0}
    for piece in pieces(text, rng):
        yield event({"type": "response.output_text.delta", **place, "delta": piece})
    part = {"type": "output_text", "text": text}
    item = {"type": "message", "role": "assistant", "content": [part]}
    yield event({"type": "response.output_text.done", **place, "text": text})
    yield event({"type": "response.content_part.done", **place, "part": part})
    yield event({"type": "response.output_item.done", "output_index": 0, "item": item})
    yield event({"type": "response.completed", "response": {"output": [item]}})


def read_chat(events: Iterable[Any]) -> list[str]:
    return ["".join(e["choices"][0]["delta"].get("content", "") for e in events)]


def read_completions(events: Iterable[Any]) -> list[str]:
    return ["".join(e["choices"][0]["text"] for e in events)]


def read_anthropic(events: Iterable[Any]) -> list[str]:
    return ["".join(e.get("delta", {}).get("text", "") for e in events)]


def read_responses(events: Iterable[Any]) -> list[str]:
    *_, done, part, item, completed = events = list(events)
    texts = [done["text"], part["part"]["text"], item["item"]["content"][0]["text"]]
    texts.append(completed["response"]["output"][0]["content"][0]["text"])
    return ["".join(e["delta"] for e in events[:-4]), *texts]


WIRES = [
    (chat, read_chat),
    (completions, read_completions),
    (anthropic, read_anthropic),
    (responses, read_responses),
]


@pytest.mark.parametrize(("write", "read"), WIRES, ids=["chat", "completions", "anthropic", "resp"])
def test_streams_of_all_apis_are_mapped(
    write: Callable[[str, random.Random], Iterator[bytes]],
    read: Callable[[Iterable[Any]], list[str]],
) -> None:
    for seed in range(20):
        rng = random.Random(seed)
        stream = b"".join([*write(TEXT, rng), DONE])
        received = relayed(stream, is_stream=True, rng=rng)
        assert set(read(decoded(received))) == {MAPPED}
        assert received.endswith(DONE)
        assert len(decoded(received)) == len(decoded(stream))


@pytest.mark.parametrize(
    "answer",
    [
        {"id": "a", "choices": [{"message": {"role": "assistant", "content": "{}"}}], "x": 1e400},
        {"choices": [{"message": {"content": [{"type": "text", "text": "{}"}]}}]},
        {"choices": [{"text": "{}", "index": 0}]},
        {"type": "message", "content": [{"type": "text", "text": "{}"}]},
        {"output": [{"type": "message", "content": [{"type": "output_text", "text": "{}"}]}]},
        {"output": [], "output_text": "{}"},
    ],
)
def test_whole_answers_of_all_apis_are_mapped(answer: Any) -> None:
    body = json.dumps(answer).replace("Infinity", "12345678901234567890.50")
    received = relayed(body.replace("{}", TEXT).encode(), is_stream=False, rng=random.Random(0))
    assert b"12345678901234567890.50" in received or "x" not in answer
    assert json.loads(received) == json.loads(body.replace("{}", MAPPED))


def test_choices_are_texts_of_their_own_and_end_on_their_own() -> None:
    def choice(index: int, text: str, **fields: Any) -> dict[str, Any]:
        return {"index": index, "delta": {"content": text}, "finish_reason": None, **fields}

    stream = [
        event({"choices": [choice(0, "a ["), choice(1, "b Document ")]}),
        event({"choices": [choice(0, "1"), choice(1, "2")]}),
        event({"choices": [choice(1, "", finish_reason="stop")]}),
        event({"choices": [choice(0, "]", finish_reason="length")]}),
        event({"choices": [], "usage": {"prompt_tokens": 3}}),
        DONE,
    ]
    received = relayed(b"".join(stream), is_stream=True, rng=random.Random(1))
    texts = {0: "", 1: ""}
    for answer in decoded(received):
        for each in answer["choices"]:
            texts[each["index"]] += each["delta"]["content"]
    assert texts == {0: "a [3]", 1: "b Document 1"}
    assert received.endswith(stream[-2] + DONE)


def test_events_in_which_nothing_changes_are_relayed_as_they_came() -> None:
    odd = b': ping\r\n\r\nid: 1\r\ndata:{"choices":[ {"index":0,"delta":{"content":"[7] 2"}}]}'
    odd += b"\r\n\r\n"
    rest = b'data: not json [1]\n\ndata: {"x": 1.50}\n\nevent: a\n\n' + DONE + b"data: cut"
    for seed in range(20):
        assert relayed(odd + rest, is_stream=True, rng=random.Random(seed)) == odd + rest


def test_an_event_that_changes_keeps_its_other_fields_and_lines() -> None:
    data = b'{"n":1.50,"choices":[{"index":0,"delta":{"content":"[1]"}}]}'
    raw = b"event: x\r\nid: 7\r\ndata: " + data + b"\r\n\r\n"
    assert relayed(raw, is_stream=True, rng=random.Random(0)) == raw.replace(b"[1]", b"[3]")


def test_tool_calls_and_reasoning_are_left_alone() -> None:
    call = {"function": {"name": "f", "arguments": '{"ids": [1]}'}}
    delta = {"tool_calls": [{"index": 0, **call}], "reasoning_content": "[1]"}
    stream = event({"choices": [{"index": 0, "delta": delta}]})
    assert relayed(stream, is_stream=True, rng=random.Random(0)) == stream
    body = json.dumps({"choices": [{"message": {"content": None, "tool_calls": [call]}}]}).encode()
    assert relayed(body, is_stream=False, rng=random.Random(0)) == body


@pytest.mark.parametrize("body", [b"", b"no json [1]", b'{"choices": [{"mess', b"[1]", b"\xff\xfe"])
def test_what_cannot_be_read_is_relayed_as_it_came(body: bytes) -> None:
    assert relayed(body, is_stream=False, rng=random.Random(0)) == body
    assert relayed(body, is_stream=True, rng=random.Random(0)) == body


def test_text_is_relayed_while_no_citation_is_open() -> None:
    mapper = AnswerMapper(MOVED)
    mapper.start(is_stream=True)
    for text in ("It ", "was Document", " ", "[", "or"):
        raw = event({"choices": [{"index": 0, "delta": {"content": text}}]})
        assert mapper.feed(raw) == raw
    assert mapper.feed(event({"choices": [{"index": 0, "delta": {"content": " [1"}}]})) == b""
    (first, second) = decoded(
        mapper.feed(event({"choices": [{"index": 0, "delta": {"content": "]."}}]}))
    )
    assert first["choices"][0]["delta"]["content"] == " [3"
    assert second["choices"][0]["delta"]["content"] == "]."


def test_an_answer_that_goes_on_with_a_text_of_the_request_is_read_with_it() -> None:
    continued = {"continue_final_message": True}
    messages = [{"role": "assistant", "content": "As Document 1 says (Document"}]
    body = b'{"choices": [{"message": {"content": " 2)."}}]}'
    rng = random.Random(0)
    received = relayed(body, is_stream=False, rng=rng, messages=messages, **continued)
    assert json.loads(received)["choices"][0]["message"]["content"] == " 1)."
    assert relayed(body, is_stream=False, rng=rng, messages=messages) == body
    assert continued_text({"messages": messages}, continues=True) == messages[0]["content"]
    body = b'{"choices": [{"text": "2]"}]}'
    received = relayed(body, is_stream=False, rng=rng, prompt="[1]\nIt is so [")
    assert json.loads(received)["choices"][0]["text"] == "1]"


def test_an_answer_beyond_the_limit_is_relayed_as_it_came() -> None:
    body = json.dumps({"choices": [{"message": {"content": "[1] " * 600_000}}]}).encode()
    assert relayed(body, is_stream=False, rng=random.Random(0)) == body
    texts = ["[1", *[""] * 50_000, "]"]
    stream = b"".join(event({"choices": [{"index": 0, "delta": {"content": t}}]}) for t in texts)
    assert relayed(stream, is_stream=True, rng=random.Random(0)) == stream


def test_a_bug_costs_the_citations_and_not_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = b"".join([*chat(TEXT, random.Random(0)), DONE])
    whole = json.dumps({"choices": [{"message": {"content": TEXT}}]}).encode()

    def broken(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr("ragboost.proxy.upstream.mapped_answer.replaced", broken)
    assert relayed(stream, is_stream=True, rng=random.Random(0)) == stream
    assert relayed(whole, is_stream=False, rng=random.Random(0)) == whole
