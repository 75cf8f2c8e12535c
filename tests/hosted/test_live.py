"""Why a request misses the prefix cache, said as it is sent: to its user only, and bounded."""

import json
from typing import Any

import pytest

from ragboost.config import PriceSettings
from ragboost.hosted.lint.causes import Cause, PrefixBreak
from ragboost.hosted.lint.conversations import LastPrompts
from ragboost.hosted.lint.live import PrefixWatch
from ragboost.rewriting.json_body import JsonBody
from ragboost.rewriting.parsed_request import parse_request
from tests.hosted.test_lint import RULES, request, with_message

Body = dict[str, Any]
MARK = {"cache_control": {"type": "ephemeral"}}
ALICE = ((b"authorization", b"Bearer alice"),)
BOB = ((b"authorization", b"Bearer bob"),)


def find(
    watch: PrefixWatch, body: Body, headers: Any = ALICE, team: str = ""
) -> PrefixBreak | None:
    parsed = parse_request(json.dumps(body).encode(), headers, formats=(), team=team)
    comparison = watch.observe(parsed)
    return comparison.run() if comparison is not None else None


def marked(body: Body, at: int = -1) -> Body:
    text = body["messages"][at]["content"]
    return with_message(body, at, [{"type": "text", "text": text, **MARK}])


def test_a_conversation_that_grows_has_no_break_and_one_that_changes_has_its_place() -> None:
    watch = PrefixWatch()
    for turns in range(1, 5):
        assert find(watch, request(turns=turns)) is None
    found = find(watch, with_message(request(turns=5), 2, "Something else."))
    assert found is not None
    assert (found.cause, found.path) == (Cause.MESSAGE, "messages[2]")
    again = find(watch, with_message(request(turns=6), 2, "Something else."))
    assert again is None  # the request before is the one to compare with


def test_nothing_is_compared_with_the_requests_of_other_credentials_users_or_teams() -> None:
    watch = PrefixWatch()
    changed = request(RULES + "Now: 2026-11-22 10:04", 3)
    assert find(watch, request(RULES + "Now: 2026-11-22 10:03")) is None
    assert find(watch, changed, BOB) is None
    assert find(watch, changed, team="b") is None
    assert find(watch, {**changed, "user": "c"}) is None
    assert find(watch, {**changed, "cache_salt": "d"}) is None
    assert find(watch, changed) is not None


def test_a_head_that_was_sent_before_diverges_nowhere() -> None:
    watch = PrefixWatch()
    first = request(RULES + "Now: 2026-11-22 10:03")
    second = request(RULES + "Now: 2026-11-22 10:04")
    named = [(*ALICE, (b"x-ragboost-session", b"%d" % i)) for i in range(4)]
    assert find(watch, first, named[0]) is None
    assert find(watch, second, named[1]) is not None
    assert find(watch, first, named[2]) is None
    assert find(watch, second, named[3]) is None


def test_a_named_conversation_is_followed_to_another_model() -> None:
    watch = PrefixWatch()
    named = (*ALICE, (b"x-ragboost-session", b"s"))
    assert find(watch, request(), named) is None
    found = find(watch, {**request(turns=3), "model": "m-2"}, named)
    assert found is not None
    assert (found.cause, found.path, found.equal_bytes) == (Cause.MODEL, "model", 0)


def test_first_requests_are_compared_by_what_no_application_varies() -> None:
    watch = PrefixWatch()
    ask = {"messages": [{"role": "user", "content": "First?"}]}
    for number in range(3):
        uuid = f"0d9f1c8e-6a43-4cb8-9a6e-2f9a7c1f000{number}"
        body = {"model": "m", "system": f"Trace {uuid}\n{RULES}Be kind.", **ask}
        ask = {"messages": [{"role": "user", "content": f"Another question, {number}?"}]}
        found = find(watch, body)
        assert (found.cause if found else None) == (Cause.RANDOM_ID if number else None)
    other = {"model": "m", "system": f"{RULES}Answer in French.\nBe kind.", **ask}
    assert find(watch, other) is None


def test_a_breakpoint_that_moves_on_is_no_break_and_a_missing_or_far_one_is() -> None:
    watch = PrefixWatch()
    for turns in range(1, 4):
        assert find(watch, marked(request(turns=turns))) is None
    found = find(watch, request(turns=4))
    assert found is not None
    assert (found.cause, found.path) == (Cause.BREAKPOINT, "messages[7]")
    assert find(watch, marked(request(turns=5))) is None
    far = find(watch, marked(request(turns=16)))
    assert far is not None
    assert far.cause is Cause.BREAKPOINT


@pytest.mark.parametrize(("seconds", "is_late"), [(299, False), (301, True)])
def test_a_request_that_comes_after_the_breakpoints_lifetime_is_too_late(
    seconds: float, is_late: bool
) -> None:
    now = 0.0
    watch = PrefixWatch(clock=lambda: now)
    assert find(watch, marked(request(), 0)) is None
    now += seconds
    found = find(watch, marked(request(turns=3), 0))
    assert (found is not None and found.cause is Cause.EXPIRED) is is_late


def test_a_conversation_without_breakpoints_is_never_too_late() -> None:
    now = 0.0
    watch = PrefixWatch(clock=lambda: now)
    assert find(watch, request()) is None
    now += 10_000
    assert find(watch, request(turns=3)) is None


def test_what_is_said_holds_no_text_is_ascii_and_has_a_price() -> None:
    watch = PrefixWatch([PriceSettings(model="m", input=10.0)])
    secret = "Sécret 2026-11-22 10:0"
    assert find(watch, request(secret + "4. " + RULES)) is None
    found = find(watch, request(secret + "5. " + RULES, 3))
    assert found is not None
    said = watch.report(found, model="m-1", tokens_per_byte=0.25)
    assert said is not None
    assert said.header.isascii()
    assert len(said.header) < 400
    assert said.header.startswith(b"diverged at messages[0], ")
    assert said.as_json()["cost"] == pytest.approx(said.lost_tokens * 9e-6)
    assert "cret" not in said.header.decode() + json.dumps(said.as_json())
    assert watch.report(found._replace(lost_bytes=3), model="m", tokens_per_byte=0.25) is None


def test_requests_that_are_too_large_or_stored_at_the_backend_are_not_kept() -> None:
    watch = PrefixWatch(num_teams=1000)  # 64 of them may have 1 MiB each
    assert find(watch, request("Now 10:04. " + "x" * 2**20)) is None
    assert find(watch, request("Now 10:05. " + "x" * 2**20, 3)) is None
    stored = {"model": "m", "previous_response_id": "r", "input": [{"role": "user"}]}
    assert find(watch, stored) is None


def test_memory_is_bounded_in_bytes() -> None:
    prompts = LastPrompts(max_size=50_000)
    for number in range(100):
        body = JsonBody(json.dumps(request(f"{number} " + RULES)).encode())
        prompts.replace(body, name=str(number))
    assert 1 <= len(prompts) <= 50_000 // 2_000


@pytest.mark.parametrize(
    "body",
    [
        {"messages": [None, 1, "x", [], {"role": 3, "content": {"a": 1}}]},
        {"messages": [{"content": [None, {"text": 3}]}], "tools": [None, {"function": 1}]},
        {"input": [{"type": "reasoning"}], "instructions": [1], "tools": {"a": 1}},
        {"prompt": "x", "system": {"a": "b"}, "tool_choice": [], "thinking": 3},
        {"messages": {}, "input": ""},
        {"prompt": list(range(1000)), "tools": [{"name": "a"}]},
        {},
    ],
)
def test_odd_bodies_are_observed_like_others(body: Body) -> None:
    watch = PrefixWatch()
    find(watch, body)
    find(watch, body)
    longer = {
        name: [*value, {}] if isinstance(value, list) else value for name, value in body.items()
    }
    find(watch, {**longer, "model": "m"})
