"""`ragboost doctor --log`: what breaks the prefix of a conversation, where, and what it costs."""

import copy
import gzip
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ragboost.proxy.hosted.conversations import LastPrompts
from ragboost.proxy.hosted.report import LintReport, lint_log
from ragboost.requests.json_body import JsonBody

Body = dict[str, Any]
ROOT = Path(__file__).parents[3]
RULES = "Follow these rules of the house, please.\n" * 40
MEMORY = [f"The user likes thing number {number} very much." for number in range(6)]


def tool(name: str, **parameters: Any) -> Body:
    schema = {"type": "object", "properties": parameters, "required": sorted(parameters)}
    return {"type": "function", "function": {"name": name, "parameters": schema}}


def request(system: str = RULES, turns: int = 2, **fields: Any) -> Body:
    messages = [{"role": "system", "content": system}]
    for turn in range(turns):
        messages.append({"role": "user", "content": f"Question {turn}: " + "why? " * 20})
        messages.append({"role": "assistant", "content": f"Answer {turn}: " + "so. " * 20})
    messages.append({"role": "user", "content": f"Question {turns}: " + "why? " * 20})
    tools = [tool("search", query={"type": "string"}, top={"type": "integer"}), tool("book")]
    return {"model": "m-1", "tools": tools, "messages": messages, **fields}


def write(path: Path, *rows: Any) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def lint(path: Path, *rows: Any, **options: Any) -> LintReport:
    return lint_log(write(path / "log.jsonl", *rows), **options)


def with_tools(body: Body, change: Callable[[list[Body]], Any]) -> Body:
    body = copy.deepcopy(body)
    body["tools"] = change(body["tools"])
    return body


def with_message(body: Body, at: int, content: Any) -> Body:
    body = copy.deepcopy(body)
    body["messages"][at]["content"] = content
    return body


def other_key_order(tools: list[Body]) -> list[Body]:
    return [dict(reversed(each.items())) for each in tools]


def other_required_order(tools: list[Body]) -> list[Body]:
    tools[0]["function"]["parameters"]["required"].reverse()
    return tools


def with_places(body: Body, *places: int) -> Body:
    return {**body, "messages": [body["messages"][at] for at in places]}


NEXT = request(turns=3)
WITH_MEMORY = "\n".join([RULES, *MEMORY])
CASES = [
    ("continues", request(), NEXT, None, None),
    (
        "time",
        request(RULES + "Now: 2026-11-22T10:04:59Z."),
        request(RULES + "Now: 2026-11-22T10:05:12Z.", 3),
        "date or time",
        "system",
    ),
    (
        "day",
        request("Today is Sunday, 22 November 2026. " + RULES),
        request("Today is Monday, 23 November 2026. " + RULES, 3),
        "date or time",
        "system",
    ),
    (
        "uuid",
        request(RULES + "Trace 0d9f1c8e-6a43-4cb8-9a6e-2f9a7c1f0001"),
        request(RULES + "Trace 77aa1c8e-6a43-4cb8-9a6e-2f9a7c1f0002", 3),
        "random id",
        "system",
    ),
    (
        "call id",
        with_message(request(), 2, [{"type": "tool_use", "id": "toolu_01AbC9x", "input": {}}]),
        with_message(NEXT, 2, [{"type": "tool_use", "id": "toolu_01ZyC7q", "input": {}}]),
        "random id",
        "assistant message",
    ),
    (
        "tool order",
        request(),
        with_tools(NEXT, lambda tools: tools[::-1]),
        "tools in another order",
        "tools",
    ),
    (
        "tool keys",
        request(),
        with_tools(NEXT, other_key_order),
        "JSON keys in another order",
        "tools",
    ),
    (
        "another number",
        {**request(), "tools": [tool("search", top={"maximum": 1})]},
        {**NEXT, "tools": [tool("search", top={"maximum": 1.0})]},
        "changed tools",
        "tools",
    ),
    (
        "new tool",
        request(),
        with_tools(NEXT, lambda tools: [tools[0], tool("cancel"), tools[1]]),
        "changed tools",
        "tools",
    ),
    (
        "memory order",
        request(WITH_MEMORY),
        request("\n".join([RULES, *MEMORY[::-1]]), 3),
        "changed system prompt",
        "system",
    ),
    (
        "memory item",
        request(WITH_MEMORY),
        request("\n".join([RULES, MEMORY[0], "The user is new here.", *MEMORY[1:]]), 3),
        "changed system prompt",
        "system",
    ),
    ("whitespace", request(), request(RULES.replace("\n", "  \n"), 3), "whitespace", "system"),
    ("system", request(), request("Be brief. " + RULES, 3), "changed system prompt", "system"),
    (
        "arguments",
        with_message(request(), 2, '{"query": "x", "top": 3}'),
        with_message(NEXT, 2, '{"top": 3, "query": "x"}'),
        "JSON keys in another order",
        "assistant message",
    ),
    (
        "truncated",
        request(turns=3),
        {**NEXT, "messages": [NEXT["messages"][0], *request(turns=4)["messages"][3:]]},
        "truncated history",
        "user message",
    ),
    (
        "edited",
        request(),
        with_message(NEXT, 2, "Something else entirely."),
        "changed message",
        "assistant message",
    ),
    ("model", request(), {**NEXT, "model": "m-2"}, "another model", "model"),
    (
        "required parameters in another order",
        request(),
        with_tools(NEXT, other_required_order),
        "order inside a tool",
        "tools",
    ),
    (
        "two messages swapped",
        request(turns=3),
        with_places(request(turns=4), 0, 3, 2, 1, *range(4, 10)),
        "messages in another order",
        "user message",
    ),
    (
        "inputs of a call",
        with_message(request(), 2, [{"type": "tool_use", "input": {"a": 1, "b": 2}}]),
        with_message(NEXT, 2, [{"input": {"b": 2, "a": 1}, "type": "tool_use"}]),
        "JSON keys in another order",
        "assistant message",
    ),
]


@pytest.mark.parametrize(
    ("before", "after", "cause", "place"),
    [case[1:] for case in CASES],
    ids=[case[0] for case in CASES],
)
def test_the_first_difference_has_a_cause_and_a_place(
    tmp_path: Path, before: Body, after: Body, cause: str | None, place: str | None
) -> None:
    report = lint(tmp_path, before, after)

    assert report.continued == 1
    found = [(str(each.cause), each.place) for each in report.findings]
    assert found == ([(cause, place)] if cause else [])


def test_the_byte_and_the_lost_tokens_are_those_of_the_first_difference(tmp_path: Path) -> None:
    before, after = (
        request("é" * 3 + "Now 10:04. " + RULES),
        request("é" * 3 + "Now 10:05. " + RULES, 3),
    )

    report = lint(tmp_path, before, after)

    ((earlier, later, found),) = report.findings[0].examples
    assert (earlier[-2:], later[-2:]) == (":1", ":2")
    text = json.dumps(before["messages"][0], ensure_ascii=False)
    assert found.offset == len(text[: text.index("4. ")].encode())
    assert found.before != found.after
    tokens = report.findings[0].lost_tokens
    sent = len(json.dumps(before["messages"], ensure_ascii=False)) // 4
    assert sent * 0.9 < tokens < sent


def test_moved_breakpoints_and_texts_as_blocks_are_no_difference(tmp_path: Path) -> None:
    mark = {"cache_control": {"type": "ephemeral"}}
    last = NEXT["messages"][-1]["content"]
    marked = with_message(request(), 0, [{"type": "text", "text": RULES, **mark}])
    moved = with_message(NEXT, -1, [{"type": "text", "text": last, **mark}])
    assert not lint(tmp_path, marked, moved).findings
    assert not lint(tmp_path, marked, NEXT).findings


def as_other_clients_write(message: Body) -> Body:
    """The same message for any template: fields in another order, and a null for what is absent."""
    calls = [dict(reversed(call.items())) for call in message.get("tool_calls", ())]
    other = {**dict(reversed(message.items())), "refusal": None}
    return {**other, "tool_calls": calls} if calls else other


def test_what_no_template_sees_of_a_message_is_no_difference(tmp_path: Path) -> None:
    before, after = request(), copy.deepcopy(NEXT)
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    for body in (before, after):
        body["messages"][2] |= {"content": None, "tool_calls": [call]}
    after["messages"] = list(map(as_other_clients_write, after["messages"]))

    for rows in ((before, after), (after, {**before, "messages": before["messages"][:4]})):
        assert not lint(tmp_path, *rows).findings
    after["messages"][3]["content"] = "Another question."
    (finding,) = lint(tmp_path, before, after).findings
    ((_, _, found),) = finding.examples
    old = json.dumps(before["messages"][3])
    assert (str(finding.cause), found.path) == ("changed message", "messages[3]")
    assert found.offset == old.index("Question 1")


def test_conversations_are_told_apart_by_name_and_by_their_messages(tmp_path: Path) -> None:
    one, two = (with_message(request(), 1, f"Question of {name}") for name in "ab")
    three, four = (with_message(NEXT, 1, f"Question of {name}") for name in "ba")
    for body in (two, three):
        for message in body["messages"][1:]:
            message["content"] += "!"
    rows = [one, two, three, four]
    report = lint(tmp_path, *rows)
    assert (report.requests, report.continued) == (4, 2)
    assert not report.findings

    named = [{"session_id": name, "body": body} for name, body in zip("abab", rows, strict=True)]
    report = lint(tmp_path, *named)
    assert [str(each.cause) for each in report.findings] == ["changed message"]


def test_equal_greetings_and_examples_do_not_make_a_conversation(tmp_path: Path) -> None:
    examples = request(turns=3)["messages"][:-1]
    rows = [
        {"model": "m", "messages": [*examples, {"role": "user", "content": text}]}
        for text in ("What is a lease?", "Who signs?", "How long does it run?")
    ]
    assert lint(tmp_path, *rows).continued == 0


def test_responses_and_anthropic_bodies_are_read(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "why?"}]
    longer = [*messages, {"role": "assistant", "content": "so"}, {"role": "user", "content": "x"}]
    for field, above in (("messages", "system"), ("input", "instructions")):
        rows = [
            {"model": "m", above: "Be brief. 10:00", field: messages},
            {"model": "m", above: "Be brief. 10:01", field: longer},
        ]
        (finding,) = lint(tmp_path, *rows).findings
        assert (str(finding.cause), finding.place) == ("date or time", "system")


def test_memory_is_bounded_by_dropping_conversations() -> None:
    prompts = LastPrompts()
    body = JsonBody(json.dumps(request()).encode())
    for number in range(3000):
        assert prompts.replace(body, name=str(number)) is None
    assert len(prompts) == 1000


def doctor(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "ragboost", "doctor", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert "Traceback" not in done.stderr
    return done


def test_the_command_prints_a_table_or_json_and_its_exit_code_tells(tmp_path: Path) -> None:
    broken = write(tmp_path / "a.jsonl", request("At 10:04. "), request("At 10:05. ", 3))
    good = tmp_path / "b.jsonl.gz"
    good.write_bytes(gzip.compress(write(tmp_path / "b.jsonl", request(), NEXT).read_bytes()))

    table = doctor("--log", str(broken))
    assert table.returncode == 1
    assert "date or time" in table.stdout
    assert "[" in table.stdout

    report = json.loads(doctor("--log", str(broken), "--json").stdout)
    assert report["findings"][0]["examples"][0]["path"] == "messages[0]"
    assert report["lost_tokens"] > 0

    clean = doctor("--log", str(good))
    assert clean.returncode == 0
    assert "2 requests" in clean.stdout


def test_bad_lines_are_named_and_skipped(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    half = '{"head_tokens": 1, "doc_tokens": [1]}'  # of a log of proxy.record
    path.write_text(f'{{"a": 1}}\nnot JSON\n\n[1]\n{json.dumps(request())}\n{half}\n')

    done = doctor("--log", str(path), "--json")

    assert done.returncode == 0
    assert json.loads(done.stdout)["bad_lines"] == 4
    for number in (1, 2, 4, 6):
        assert f"log.jsonl:{number}: " in done.stderr


@pytest.mark.parametrize(
    ("content", "said"), [(None, "cannot read"), ("", "no lines"), ("{}\n", "no request")]
)
def test_a_log_without_requests_is_an_error(tmp_path: Path, content: str | None, said: str) -> None:
    path = tmp_path / "log.jsonl"
    if content is not None:
        path.write_text(content)
    done = doctor("--log", str(path))
    assert done.returncode == 2
    assert said in done.stderr
    both = doctor("--log", str(path), "--backend", "http://127.0.0.1:1")
    assert both.returncode == 2


DOCUMENTS = "".join(f"<document>Text {i} tells at length of {i}.</document>\n" for i in range(3))


def test_a_log_of_lengths_is_summed_up(tmp_path: Path) -> None:
    row = {
        "t_s": 1.5,
        "tenant": "t",
        "session": None,
        "head": "h",
        "head_tokens": 1024,
        "doc_ids": ["a", "b"],
        "doc_tokens": [100, 200],
        "tail_tokens": 24,
    }
    report = lint(tmp_path, *[row] * 100, {**row, "doc_ids": ["a"]})

    assert (report.requests, report.num_bad_lines) == (100, 1)
    assert report.prompt_tokens == 100 * 1348
