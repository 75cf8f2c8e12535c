"""A hold-out: some conversations are not boosted, and both kinds are compared."""

import json
from collections.abc import Callable

import httpx
import pytest

from ragboost.config import Settings
from ragboost.proxy.observability.hold_out import with_arm
from ragboost.requests.formats import make_formats
from ragboost.requests.parsed_request import ParsedRequest, parse_request
from tests.fakes import FakeEngine
from tests.fakes.proxy import ProxyServer
from tests.metrics import read_metric
from tests.proxy.routing.test_routing import ask, documents

Start = Callable[..., ProxyServer]


def parsed(*messages: str, **fields: object) -> ParsedRequest:
    roles = ("user", "assistant") * len(messages)
    body = {
        "model": "m",
        "messages": [
            {"role": "system", "content": "Be brief."},
            *({"role": r, "content": m} for r, m in zip(roles, messages, strict=False)),
        ],
        "ragboost": {"documents": documents(1, 2), **fields},
    }
    return parse_request(json.dumps(body).encode(), [], formats=make_formats(Settings()))


def arm_of(request: ParsedRequest, *, share: float) -> str | None:
    return with_arm(request, share=share).arm


def test_a_tenth_of_the_conversations_is_held_out_and_each_has_one_arm() -> None:
    num_held_out = 0
    for at in range(2000):
        named = {"session_id": f"s{at}"} if at % 2 else {}
        first = arm_of(parsed(f"{at}?", **named), share=0.9)
        later = arm_of(parsed(f"{at}?", "yes", "why?", **named), share=0.9)
        assert first == later
        num_held_out += first == "held_out"
    assert 140 <= num_held_out <= 260


def test_requests_that_ask_for_no_boosting_or_have_no_documents_have_no_arm() -> None:
    assert arm_of(parsed("why?", options={"boost": False}), share=0.5) is None
    body = b'{"messages": [{"role": "user", "content": "why?"}]}'
    without = parse_request(body, [], formats=make_formats(Settings()))
    assert arm_of(without, share=0.5) is None
    assert arm_of(parsed("why?"), share=1.0) is None


@pytest.mark.parametrize(("share", "arm"), [(0.0, "held_out"), (0.999999, "boosted")])
def test_the_arms_are_forwarded_and_counted(
    engine: FakeEngine, start_proxy: Start, share: float, arm: str
) -> None:
    proxy = start_proxy(boost={"share": share})
    for order in ((1, 2, 3), (3, 2, 1)):
        answer = ask(proxy.url, *order)
    content = engine.completions[-1].json["messages"][-1]["content"]
    is_as_given = content.index("Document 3 tells") < content.index("Document 1 tells")
    assert is_as_given == (arm == "held_out")
    assert answer.headers.get("x-ragboost-bypass") == ("held_out" if is_as_given else None)
    data = httpx.get(f"{proxy.url}/dashboard/data").json()
    (figures,) = data["arms"].values()
    assert data["arms"].keys() == {arm}
    assert (figures["count"], figures["p50_ms"] > 0) == (2, True)
    assert figures["prompt_tokens"] == data["totals"]["prompt_tokens"]
    assert figures["cached_tokens"] == data["totals"]["cached_tokens"]
    assert read_metric(proxy.url, "ragboost_prompt_tokens_total", arm=arm) > 0


def test_a_held_out_conversation_stays_as_it_was_sent(
    engine: FakeEngine, start_proxy: Start
) -> None:
    proxy = start_proxy(boost={"share": 0.0})
    history = [{"role": "user", "content": "one?"}]
    first = ask(
        proxy.url, messages=history, ragboost={"documents": documents(2, 1), "session_id": "a"}
    )
    history += [first.json()["choices"][0]["message"], {"role": "user", "content": "two?"}]
    ask(proxy.url, messages=history, ragboost={"documents": documents(1, 2), "session_id": "a"})
    before, after = (received.json["messages"] for received in engine.completions)
    assert after[0] == before[0]
    assert after[-1]["content"].count("tells of") == before[-1]["content"].count("tells of")
