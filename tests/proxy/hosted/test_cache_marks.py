"""Hosted APIs are told what is shared, by the marks they know, and the caller's marks stay."""

import copy
import itertools
import json
from typing import Any

import httpx
import pytest

from ragboost.config import PriceSettings, Settings
from ragboost.proxy.hosted.cache_marks import CacheMarker, MarkStyle, mark_style
from tests.fakes import FakeEngine
from tests.fakes.hosted_caches import MARKS, BreakpointCache
from tests.fakes.proxy import ProxyServer, proxy_settings

MARK = {"type": "ephemeral"}
PRICES = ({"model": "m", "input": 3.0, "min_tokens": 0},)
DOCUMENTS = {
    name: {"id": name, "text": f"{name} says nothing of the kind. " * 20} for name in "ABCD"
}


def send(style: str, *bodies: dict[str, Any], path: str) -> list[dict[str, Any]]:
    """What the backend gets."""
    with FakeEngine() as engine:
        settings = proxy_settings(engine.url, backend={"cache_marks": style}, prices=PRICES)  # type: ignore[arg-type]
        with ProxyServer(settings) as proxy:
            for body in bodies:
                assert httpx.post(proxy.url + path, json=body).status_code == 200
        return [r.json for r in engine.requests if r.path == path]


def chat(names: str, **fields: Any) -> dict[str, Any]:
    documents = [DOCUMENTS[name] for name in names]
    messages = [{"role": "user", "content": "why?"}]
    return {"model": "m", "messages": messages, "ragboost": {"documents": documents}, **fields}


def block(name: str) -> dict[str, Any]:
    source = {"type": "text", "media_type": "text/plain", "data": DOCUMENTS[name]["text"]}
    return {"type": "document", "source": source, "title": name}


def blocks(names: str, **fields: Any) -> dict[str, Any]:
    content = [*map(block, names), {"type": "text", "text": "why?"}]
    return {"model": "m", "messages": [{"role": "user", "content": content}], **fields}


def turns(count: int, **fields: Any) -> list[dict[str, Any]]:
    """The requests of one conversation."""
    messages: list[dict[str, Any]] = []
    bodies = []
    for turn in range(count):
        messages = [*messages, {"role": "user", "content": f"Question {turn}. " * 40}]
        bodies.append({"model": "m", "system": "Be brief. " * 40, "messages": messages, **fields})
        answer = [{"type": "text", "text": f"Answer {turn}. " * 40}]
        messages = [*messages, {"role": "assistant", "content": answer}]
    return bodies


def unmarked(body: Any) -> Any:
    """The body without marks, and texts that became blocks as texts again."""
    if isinstance(body, list):
        if (
            len(body) == 1
            and isinstance(body[0], dict)
            and set(body[0]) - set(MARKS)
            == {
                "type",
                "text",
            }
        ):
            return body[0]["text"]
        return [unmarked(each) for each in body]
    if not isinstance(body, dict):
        return body
    left_out = (*MARKS, "prompt_cache_options", "stream_options")
    return {name: unmarked(value) for name, value in body.items() if name not in left_out}


def num_marks(body: dict[str, Any]) -> int:
    return sum(json.dumps(body).count(f'"{mark}"') for mark in MARKS)


def test_requests_with_the_same_first_document_share_a_key() -> None:
    first, second, other, own = send(
        "openai",
        chat("ABC"),
        chat("DBA"),
        chat("CD"),
        chat("AB", prompt_cache_key="theirs"),
        path="/v1/chat/completions",
    )
    assert first["prompt_cache_key"].startswith("ragboost-")
    assert second["prompt_cache_key"] == first["prompt_cache_key"]
    assert other["prompt_cache_key"] != first["prompt_cache_key"]
    assert own["prompt_cache_key"] == "theirs"


def test_later_turns_keep_the_key_of_their_conversation() -> None:
    first = blocks("AB")
    second = copy.deepcopy(first)
    second["messages"] += [
        {"role": "assistant", "content": "so."},
        {"role": "user", "content": "and then?"},
    ]
    plain = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
    sent = send("openai", first, second, plain, path="/v1/chat/completions")
    assert sent[1]["prompt_cache_key"] == sent[0]["prompt_cache_key"]
    assert "prompt_cache_key" not in sent[2]


@pytest.mark.parametrize("style", ["anthropic", "openai_breakpoints"])
def test_a_conversation_is_marked_so_that_each_turn_reads_the_one_before(style: str) -> None:
    bodies = turns(6)
    sent = send(style, *bodies, path="/v1/messages")

    lifetimes = {"": 300.0, "1h": 3600.0}
    cache = BreakpointCache(lifetimes, lookback=20, min_tokens=0)
    read = []
    for before, after in zip(bodies, sent, strict=True):
        assert unmarked(after) == unmarked(before)
        assert 1 <= num_marks(after) <= 4
        assert ("prompt_cache_options" in after) is (style == "openai_breakpoints")
        total = cache.bill.read
        cache.send(after, 0.0)
        read.append(cache.bill.read - total)
    assert read[0] == 0
    assert all(later > earlier for earlier, later in itertools.pairwise(read))


def test_documents_that_return_are_marked_and_a_question_that_does_not_is_not() -> None:
    bodies = []
    for number in range(40):
        body = blocks("AB")
        body["messages"][0]["content"][-1]["text"] = f"Question {number}? " * 20
        bodies.append(body)
    *_, last = send("anthropic", *bodies, path="/v1/messages")

    *documents, question = last["messages"][0]["content"]
    assert "cache_control" in documents[-1]
    assert "cache_control" not in question


@pytest.mark.parametrize(
    "body",
    [
        blocks("AB", system=[{"type": "text", "text": "s", "cache_control": MARK}]),
        blocks("AB", tools=[{"name": "t", "cache_control": MARK}]),
        blocks("AB", cache_control=MARK),
        {
            "model": "m",
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "x", "cache_control": MARK}]}
            ],
        },
    ],
)
def test_where_the_caller_has_set_a_breakpoint_none_is_added(body: dict[str, Any]) -> None:
    for sent in send("anthropic", body, body, path="/v1/messages"):
        assert str(sent).count("cache_control") == str(body).count("cache_control")


def test_prompts_below_the_shortest_length_that_is_cached_get_no_mark() -> None:
    marker = CacheMarker("anthropic", [PriceSettings(model="m", input=3.0, min_tokens=5000)])
    for body in turns(3):
        assert marker.mark(body, None) == body


@pytest.mark.parametrize("style", ["anthropic", "openai_breakpoints"])
def test_odd_bodies_are_left_alone(style: MarkStyle) -> None:
    marker = CacheMarker(style, [PriceSettings(model="m", input=3.0, min_tokens=0)])
    odd: list[dict[str, Any]] = [
        {},
        {"messages": "x"},
        {"messages": [1, "x", None]},
        {"prompt": "x"},
        {"messages": [{"role": "user", "content": ["x", 1, {"type": "text", "text": ""}]}]},
        {"messages": [{"role": "user", "content": ""}], "tools": [1], "system": [2]},
        {"messages": [{"role": "\ud800", "content": None}]},
    ]
    for body in odd:
        assert num_marks(dict(marker.mark(body, None))) == 0


def test_more_than_four_marks_are_never_set() -> None:
    marker = CacheMarker("anthropic", [PriceSettings(model="m", input=3.0, min_tokens=0)])
    tools = [{"name": f"tool {number}", "input_schema": {}} for number in range(9)]
    for _ in range(4):
        for body in turns(30, tools=tools):
            assert num_marks(dict(marker.mark(body, None))) <= 4


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
def test_nothing_is_marked_unless_it_is_asked_for(path: str) -> None:
    sent = send("none", chat("AB"), blocks("AB"), path=path)
    assert not any("cache_control" in str(each) or "prompt_cache_key" in each for each in sent)


def test_an_engine_with_cache_events_is_never_sent_a_mark() -> None:
    with FakeEngine(events=True) as engine:
        assert engine.events is not None
        settings = proxy_settings(
            engine.url,
            backend={"cache_marks": "anthropic"},
            prices=PRICES,  # type: ignore[arg-type]
            engine_hooks={"endpoint": engine.events.endpoint},
        )
        with ProxyServer(settings) as proxy:
            for body in turns(3):
                httpx.post(f"{proxy.url}/v1/messages", json=body).raise_for_status()
        assert not any("cache_control" in str(each.json) for each in engine.requests)


@pytest.mark.parametrize(
    ("urls", "sections", "style"),
    [
        (["https://api.anthropic.com/v1"], {"stable": "safe"}, "anthropic"),
        (["https://api.anthropic.com", "https://other.example"], {"stable": "safe"}, "none"),
        (["http://127.0.0.1:8000"], {"stable": "safe"}, "none"),
        (["https://api.anthropic.com"], {}, "none"),
        (["https://api.anthropic.com"], {"stable": "safe", "marks": "none"}, "none"),
        (["http://127.0.0.1:8000"], {"stable": "safe", "marks": "openai"}, "openai"),
    ],
)
def test_safe_sets_breakpoints_for_a_provider_that_is_known_by_its_address(
    urls: list[str], sections: dict[str, str], style: str
) -> None:
    marks = {"cache_marks": sections["marks"]} if "marks" in sections else {}
    settings = Settings(
        stable=sections.get("stable", "off"),
        backend={"url": urls[0], **marks},
        backends=[{"url": url, "name": url[8:]} for url in urls] if len(urls) > 1 else [],
    )
    assert mark_style(settings) == style
