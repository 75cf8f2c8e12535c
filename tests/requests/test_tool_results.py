"""Repeated tool results through the proxy: sent once, and the same bytes in every later turn."""

import itertools
import json
import random
import re
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw

from ragboost.dedup import PassageSizes
from ragboost.requests.tool_results import share_tool_results
from tests.fakes import FakeEngine
from tests.fakes.proxy import ProxyServer
from tests.proxy.conversations.chats import check_extends, contents, document
from tests.requests.tool_oracle import WIRES, Step, restore

URL = "/v1/chat/completions"
SIZES = PassageSizes(200, 400, 1600)
WHOLE = re.compile(r"\[Same as tool result (\d+) above\.\]")
PART = re.compile(r'\[Same text as in tool result (\d+) above, from "(.*?)" to "(.*?)", (\d+) char')


def source_file(seed: int, lines: int = 80) -> str:
    choose = random.Random(seed)
    return "".join(f"def f{i}(): return {choose.getrandbits(64)}\n" for i in range(lines))


def tool(at: int, content: Any) -> list[dict[str, Any]]:
    call = {"id": f"c{at}", "type": "function", "function": {"name": "read", "arguments": "{}"}}
    return [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": f"c{at}", "content": content},
    ]


@pytest.fixture
def client(start_proxy: Callable[..., ProxyServer]) -> httpx.Client:
    return httpx.Client(base_url=start_proxy(dedup={"passages": True}).url)


def test_a_file_read_twice_is_sent_once(client: httpx.Client, engine: FakeEngine) -> None:
    file = source_file(1)
    messages = [{"role": "user", "content": "do it"}, *tool(1, file), *tool(2, file)]
    with client:
        client.post(URL, json={"messages": messages})
        counters = client.get("/metrics").text
    sent = contents(engine.completions[0])
    assert sent[2] == file
    assert sent[4] == "[Same as tool result 1 above.]"
    assert re.search(r"^ragboost_passage_bytes_total [1-9]", counters, flags=re.MULTILINE)


def test_each_step_extends_the_last_one(client: httpx.Client, engine: FakeEngine) -> None:
    file = source_file(2, lines=240)
    edited = file.replace("def f40()", "def edited()")
    parts = [{"type": "text", "text": edited}, {"type": "text", "text": "unchanged"}]
    messages: list[Any] = [{"role": "user", "content": "do it"}]
    with client:
        for at, content in enumerate(["small", file, parts, file, edited + file]):
            messages.extend(tool(at, content))
            documents = {"ragboost": {"documents": [document(1)]}} if at == 0 else {}
            client.post(URL, json={"messages": messages, **documents})
    sent = engine.completions
    for old, new in itertools.pairwise(sent):
        assert new.json["messages"][1 : len(old.json["messages"])] == old.json["messages"][1:]
        if old is not sent[0]:
            check_extends(new, old)
    part = contents(sent[-1])[6][0]["text"]
    assert "def edited()" in part
    assert len(part) < len(edited) / 2
    for number, first, last, size in PART.findall(part):
        assert number == "2"
        start, end = _squeeze(file).index(first), _squeeze(file).index(last)
        assert start < end
        assert int(size) < len(file)
    assert contents(sent[-1])[8] == "[Same as tool result 2 above.]"


def _squeeze(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("wire", WIRES.values(), ids=WIRES)
def test_every_wire_format_sends_a_result_once(
    client: httpx.Client, engine: FakeEngine, wire: Any
) -> None:
    file = source_file(3)
    results = [file, file.replace("def f40()", "def edited()"), file]
    body: list[dict[str, Any]] = [{"role": "user", "content": "do it"}]
    sent: list[Any] = []
    with client:
        for number, text in enumerate(results):
            body += wire.messages(number, Step("read", {"path": "a.py"}, text))
            client.post(wire.path, json={"model": "m", wire.name: body, "max_tokens": 4})
            last, sent = sent, engine.requests[-1].json[wire.name]
            assert sent[: len(last)] == last
    shown = [wire.result(message) for message in sent[2::2]]
    assert shown[0] == file
    assert len(shown[1]) < len(file) / 2
    assert shown[2] == "[Same as tool result 1 above.]"
    assert restore(shown) == results


def test_results_behind_a_stored_conversation_are_sent_in_full(
    client: httpx.Client, engine: FakeEngine
) -> None:
    items: list[Any] = []
    for number in range(2):
        items += WIRES["responses"].messages(number, Step("read", {}, source_file(4)))
    with client:
        for stored in ({"previous_response_id": "resp_1"}, {"conversation": "conv_1"}):
            client.post("/v1/responses", json={"model": "m", "input": items, **stored})
            assert engine.requests[-1].json["input"] == items


def test_a_result_in_parts_is_not_named_as_a_whole() -> None:
    first, second = source_file(5), source_file(6)
    parts = [{"type": "text", "text": first}, {"type": "text", "text": second}]
    messages = [*tool(1, parts), *tool(2, first)]
    shared = share_tool_results(messages, sizes=SIZES)
    assert PART.findall(shared.messages[-1]["content"])
    assert not WHOLE.findall(shared.messages[-1]["content"])


def test_a_passage_that_occurs_twice_is_kept() -> None:
    header = "".join(f"# licence line {i} of the header\n" for i in range(30))
    twice = header + source_file(7) + header
    messages = [*tool(1, twice), *tool(2, header + source_file(8))]
    shared = share_tool_results(messages, sizes=SIZES)
    assert restore([m["content"] for m in shared.messages if m["role"] == "tool"]) == [
        twice,
        header + source_file(8),
    ]


def test_a_document_that_is_referred_to_begins_as_the_reference_says(
    client: httpx.Client, engine: FakeEngine
) -> None:
    begin = "The register of the harbour office, second volume, as copied by the clerk, "
    with client:
        for seed in range(20):
            one, two = (f"{begin}{name}: {source_file(seed, 9)}" for name in "AB")
            # Too short for a reference, and together with `begin` long enough for a passage.
            short = [source_file(seed + at, 3) for at in range(2)]
            messages: list[Any] = [{"role": "user", "content": "do it"}]
            for at, texts in enumerate([[*short, one], [*short, two], [two, source_file(99)]]):
                messages += tool(at, json.dumps([{"text": text} for text in texts]))
            client.post(URL, json={"messages": messages})
            *_, first, second, third = contents(engine.requests[-1])[::2]
            quoted = re.search(r'begins with \\"(.*?)\\"', third)
            assert quoted is not None
            assert quoted[1] in " ".join(f"{first} {second}".split())


def test_results_that_are_encoded_already_are_counted() -> None:
    encoded = Raw(b'{"role": "tool", "content": "rewritten before"}')
    messages = [encoded, *tool(2, source_file(9)), *tool(3, source_file(9))]
    shared = share_tool_results(messages, sizes=SIZES)
    assert shared.messages[-1]["content"] == "[Same as tool result 2 above.]"
    assert shared.messages[0] is encoded


def test_odd_results_pass() -> None:
    messages: list[Any] = [
        {"role": "tool"},
        {"role": "user", "content": [{"type": "tool_result"}, 7, {"type": "tool_result", "x": 1}]},
        {"type": "function_call_output", "output": None},
        *tool(5, [{"type": "image_url"}, {"type": "text"}]),
    ]
    assert share_tool_results(messages, sizes=SIZES) == (messages, 0)


def test_it_is_off_by_default(proxy: ProxyServer, engine: FakeEngine) -> None:
    file = source_file(1)
    body = {"messages": [{"role": "user", "content": "x"}, *tool(1, file), *tool(2, file)]}
    sent = httpx.Request("POST", "http://x", json=body).content
    httpx.post(proxy.url + URL, content=sent)
    assert engine.completions[0].body == sent


def test_a_chat_without_repetitions_passes_byte_for_byte(
    client: httpx.Client, engine: FakeEngine
) -> None:
    body = b'{ "messages": [{"role":"user", "content":"x"},{"role": "tool","content" : "r"}] }'
    odd = b'{"messages": [{"role": "tool", "content": 7}, {"role": "tool", "content": [{"a":9}]}]}'
    with client:
        for raw in (body, odd, b'{"messages": "x"}', b'{"prompt": "x"}'):
            client.post(URL, content=raw)
            assert engine.requests[-1].body == raw


@settings(max_examples=60, deadline=None)
@given(seeds=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 60)), max_size=7))
def test_every_reference_names_a_result_that_is_kept(seeds: list[tuple[int, int]]) -> None:
    messages: list[Any] = []
    for at, (seed, start) in enumerate(seeds):
        lines = source_file(seed).splitlines(keepends=True)
        messages.extend(tool(at, "".join(lines[start:])))
    shared = share_tool_results(messages, sizes=SIZES)
    results = [m["content"] for m in shared.messages if m["role"] == "tool"]
    for at, text in enumerate(results):
        for number in WHOLE.findall(text):
            assert int(number) <= at
            assert "[Same" not in results[int(number) - 1]
        for number, first, last, _ in PART.findall(text):
            assert int(number) <= at
            kept = _squeeze(results[int(number) - 1])
            assert first in kept
            assert last in kept
    given = [m["content"] for m in messages if m["role"] == "tool"]
    assert restore(results) == given
    for end in range(len(messages)):
        again = share_tool_results(messages[:end], sizes=SIZES)
        assert again.messages == shared.messages[:end]
