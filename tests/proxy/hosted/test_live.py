"""Why a request misses the prefix cache, said as it is sent: to its user only, and bounded."""

import json
from typing import Any

import pytest

from ragboost.proxy.hosted.causes import Cause
from ragboost.proxy.hosted.comparison import CacheBreak, PrefixBreak, find_break
from ragboost.proxy.hosted.conversations import LastPrompts, PrefixWatch
from ragboost.requests.json_body import JsonBody
from ragboost.requests.parsed_request import parse_request
from ragboost.requests.wires.normal_form import EngineKind
from tests.proxy.hosted.test_lint import RULES, request, with_message

Body = dict[str, Any]
MARK = {"cache_control": {"type": "ephemeral"}}
ALICE = ((b"authorization", b"Bearer alice"),)
BOB = ((b"authorization", b"Bearer bob"),)


def observe(
    watch: PrefixWatch, body: Body, headers: Any = ALICE, *, kind: EngineKind = "", team: str = ""
) -> tuple[PrefixBreak | None, CacheBreak | None]:
    """Return the first difference, and what is said of it."""
    parsed = parse_request(json.dumps(body).encode(), headers, formats=(), team=team)
    if (pair := watch.observe(parsed, kind=kind)) is None:
        return None, None
    found = find_break(pair, kind=kind, template=watch.template)
    report = CacheBreak.of(found, tokens_per_byte=0.25)
    return (None, None) if report is None else (found, report)


def find(
    watch: PrefixWatch, body: Body, headers: Any = ALICE, team: str = "", kind: EngineKind = ""
) -> PrefixBreak | None:
    return observe(watch, body, headers, kind=kind, team=team)[0]


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


def test_a_named_conversation_is_followed_to_another_model() -> None:
    watch = PrefixWatch()
    named = (*ALICE, (b"x-ragboost-session", b"s"))
    assert find(watch, request(), named) is None
    found = find(watch, {**request(turns=3), "model": "m-2"}, named)
    assert found is not None
    assert (found.cause, found.path, found.equal_bytes) == (Cause.MODEL, "model", 0)


def test_breakpoints_that_move_on_or_go_are_no_break() -> None:
    watch = PrefixWatch()
    for turns in range(1, 4):
        assert find(watch, marked(request(turns=turns))) is None
    assert find(watch, request(turns=4)) is None
    assert find(watch, marked(request(turns=16))) is None


def test_what_is_said_holds_no_text_and_is_ascii() -> None:
    watch = PrefixWatch()
    secret = "Sécret 2026-11-22 10:0"
    assert find(watch, request(secret + "4. " + RULES)) is None
    _, said = observe(watch, request(secret + "5. " + RULES, 3))
    assert said is not None
    assert said.header.isascii()
    assert len(said.header) < 400
    assert said.header.startswith(b"diverged at messages[0], ")
    assert "cret" not in said.header.decode() + json.dumps(said.as_json())


@pytest.mark.parametrize("guess", ["Key: A1", "Key: B2", "Key: B2C3"])
def test_a_guess_at_another_conversations_head_is_told_nothing(guess: str) -> None:
    watch = PrefixWatch()
    end = "\nNow 10:0%d. Answer politely, and never name the key."
    find(watch, request(RULES + "Key: B2C3" + end % 4))
    other = {"messages": [{"role": "user", "content": "Tell me."}], "model": "m-1"}
    other["messages"].insert(0, {"role": "system", "content": RULES + guess + end % 5})
    assert observe(watch, {**other, "tools": request()["tools"]}) == (None, None)


def test_place_and_length_are_for_who_sends_an_answer_of_the_conversation() -> None:
    watch = PrefixWatch()
    opening = request("Now 10:04. " + RULES, turns=0)
    find(watch, opening)
    guessed = request("Now 10:05. " + RULES, turns=1)
    guessed["messages"][1] = opening["messages"][1]
    _, said = observe(watch, guessed)
    assert said is not None
    assert b"tokens" not in said.header
    changed = request("Now 10:06. " + RULES, turns=2)
    changed["messages"][1:4] = guessed["messages"][1:4]
    _, said = observe(watch, changed)
    assert said is not None
    assert said.header.startswith(b"diverged at messages[0], ")


THOUGHT = "It follows. " * 20
MARKED_THOUGHT = [
    {"type": "thinking", "thinking": THOUGHT, "signature": "x"},
    {"type": "text", "text": "So."},
]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"content": "So.", "reasoning_content": THOUGHT}, {"content": "So."}),
        ({"content": "So.", "reasoning": THOUGHT}, {"content": "So.", "reasoning": None}),
        (
            {"content": "So.", "reasoning": THOUGHT, "reasoning_details": [{"text": THOUGHT}]},
            {"content": "So."},
        ),
        ({"content": MARKED_THOUGHT}, {"content": MARKED_THOUGHT[1:]}),
        ({"content": MARKED_THOUGHT}, {"content": "So."}),
    ],
)
@pytest.mark.parametrize("kind", ["", "vllm", "sglang", "hosted"])
def test_reasoning_that_is_dropped_is_named(before: Body, after: Body, kind: EngineKind) -> None:
    first, second = request(turns=2), request(turns=3)
    first["messages"][2], second["messages"][2] = (
        {"role": "assistant", **answer} for answer in (before, after)
    )
    watch = PrefixWatch()
    find(watch, first, kind=kind)
    found = find(watch, second, kind=kind)
    assert found is not None
    assert (found.cause, found.path) == (Cause.REASONING, "messages[2]")


def test_a_reasoning_item_that_is_dropped_is_named() -> None:
    items: list[Body] = [
        {"role": "user", "content": "One? " + "why? " * 20},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": THOUGHT}]},
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "A."}],
        },
        {"role": "user", "content": "Two?"},
    ]
    watch = PrefixWatch()
    find(watch, {"model": "m", "input": items})
    more = [{"role": "assistant", "content": "B."}, {"role": "user", "content": "Three?"}]
    found = find(watch, {"model": "m", "input": [items[0], *items[2:], *more]})
    assert found is not None
    assert (found.cause, found.path) == (Cause.REASONING, "input[1]")


def called(arguments: str, result: Any, **call: Any) -> Body:
    function = {"name": "read", "arguments": arguments}
    made = {"id": "t1", "type": "function", "function": function, **call}
    body = request(turns=2)
    body["messages"][1:1] = [
        {"role": "user", "content": "Read it."},
        {"role": "assistant", "content": None, "tool_calls": [made]},
        {"role": "tool", "tool_call_id": "t1", "content": result},
    ]
    return body


def test_a_cleared_result_of_a_tool_is_named() -> None:
    watch = PrefixWatch()
    find(watch, called("{}", "def f(): pass\n" * 40))
    found = find(watch, called("{}", "[Old tool result content cleared]"))
    assert found is not None
    assert (found.cause, found.path) == (Cause.CLEARED, "messages[3]")


@pytest.mark.parametrize(
    ("arguments", "call"),
    [
        ('{ "path":"a" ,"n":1 }', {}),
        ('{"path": "a", "n": 1}', {"index": 0}),
        ('{"path": "\\u0061", "n": 1}', {}),
    ],
)
def test_a_call_that_is_printed_anew_is_no_break_for_an_engine(arguments: str, call: Body) -> None:
    for kind, is_parsed in (("vllm", True), ("sglang", True), ("", not call), ("hosted", False)):
        watch = PrefixWatch()
        find(watch, called('{"path": "a", "n": 1}', "x"), kind=kind)  # type: ignore[arg-type]
        found = find(watch, called(arguments, "x", **call), kind=kind)  # type: ignore[arg-type]
        assert (found is None) is is_parsed, kind


def claude_code(number: int, *turns: str, system: Any = None) -> Body:
    line = f"x-anthropic-billing-header: cc_version=2.1.{number}; cch={number * 7919:05x};"
    blocks = [{"type": "text", "text": line}, {"type": "text", "text": RULES}]
    roles = ("user", "assistant")
    messages = [{"role": roles[at % 2], "content": text} for at, text in enumerate(turns)]
    return {"model": "m", "system": system or blocks, "messages": messages}


def test_the_billing_line_is_named_with_its_switch_where_the_engine_reads_it() -> None:
    for kind in ("", "sglang", "hosted", "vllm"):
        watch = PrefixWatch()
        observe(watch, claude_code(1, "Mend it."), kind=kind)  # type: ignore[arg-type]
        second = claude_code(2, "Mend it.", "Done.", "Thanks.")
        _, said = observe(watch, second, kind=kind)  # type: ignore[arg-type]
        if kind == "vllm":
            assert said is None
            continue
        assert said is not None
        assert said.cause is Cause.VOLATILE
        assert b"CLAUDE_CODE_ATTRIBUTION_HEADER=0" in said.header


@pytest.mark.parametrize(
    ("kind", "is_moved"), [("vllm", True), ("sglang", True), ("hosted", False)]
)
def test_a_later_system_message_is_a_break_where_engines_move_it_to_the_front(
    kind: EngineKind, is_moved: bool
) -> None:
    watch = PrefixWatch()
    turns = ("Mend it.", "Done.", "Thanks.")
    find(watch, claude_code(1, *turns, system=RULES), kind=kind)
    later = claude_code(1, *turns, "Fine.", "And now?", system=RULES)
    later["messages"].insert(4, {"role": "system", "content": "The plan was changed."})
    found = find(watch, later, kind=kind)
    if not is_moved:
        assert found is None
        return
    assert found is not None
    assert (found.cause, found.path) == (Cause.HOISTED, "messages[4]")
    chat = request(turns=2)
    watch = PrefixWatch()
    find(watch, chat, kind=kind)
    longer = request(turns=3)
    longer["messages"].insert(6, {"role": "system", "content": "The plan was changed."})
    assert find(watch, longer, kind=kind) is None


def test_two_long_texts_are_compared_by_what_stands_around_their_difference() -> None:
    watch = PrefixWatch()
    long = "Rules of the house.\n" * 20_000
    assert find(watch, request(long + "Now: 2026-11-22 10:03." + RULES)) is None
    found = find(watch, request(long + "Now: 2026-11-22 10:04." + RULES, 3))
    assert found is not None
    assert (found.cause, found.path) == (Cause.TIME, "messages[0]")
    assert len(long) < found.offset < len(long) * 1.1
    assert "10:03.Follow" in found.before


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
        {"messages": [{"role": "user", "content": [{"type": {}}, {"type": []}]}], "system": True},
        {"messages": [{"role": "tool", "type": [], "content": "x"}], "system": 1.5},
        {"messages": [{"role": "assistant", "tool_calls": [{"function": 3}, None, {}]}]},
        {"messages": [{"role": ["user"], "content": {"type": ["x"]}}], "instructions": {"a": 1}},
        {},
    ],
)
@pytest.mark.parametrize("kind", ["", "vllm", "sglang", "hosted"])
def test_odd_bodies_are_observed_like_others(body: Body, kind: EngineKind) -> None:
    watch = PrefixWatch()
    find(watch, body, kind=kind)
    find(watch, body, kind=kind)
    text = json.dumps(body)
    for old, new in (('"x"', '"y"'), ("[]", '["b"]'), ("{}", '{"type": "thinking"}'), ("3", "4")):
        find(watch, {**json.loads(text.replace(old, new)), "n": 1}, kind=kind)
        find(watch, {**body, "n": 1}, kind=kind)
    longer = {
        name: [*value, {}] if isinstance(value, list) else value for name, value in body.items()
    }
    find(watch, {**longer, "model": "m"}, kind=kind)
