"""Several groups in a payload, tool results, content blocks and the bodies that carry them."""

import json
from itertools import pairwise
from typing import Any

import pytest

from ragboost.booster.booster import Booster
from ragboost.config import Settings
from ragboost.requests.formats import (
    AmbiguousDocumentsError,
    NothingToDoError,
    OrderedDocumentsError,
    find_format,
    make_formats,
)
from tests.requests.formats.rewriting import boost, find, reorder, text_of, user

LONG = {
    name: f"{name} says: " + f"a long text about {name}, and on. " * 8 + "End." for name in "ABCDE"
}


def results(*names: str) -> str:
    return json.dumps([{"text": LONG[name], "score": i / 7} for i, name in enumerate(names)])


def xml(*names: str) -> str:
    return "\n".join(f"<document>{LONG[name]}</document>" for name in names)


def text_part(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


def tool(content: Any, call: str = "c1") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call, "content": content}


def agent(*tool_contents: Any) -> dict[str, Any]:
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Who signed?"}]
    for i, content in enumerate(tool_contents):
        call = {"id": f"c{i}", "type": "function", "function": {"name": "s", "arguments": "{}"}}
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        messages.append(tool(content, f"c{i}"))
    return {"model": "m", "messages": messages}


def test_a_later_result_refers_to_text_of_an_earlier_one() -> None:
    body = agent(results("A", "B"), results("C", "B"))
    new = reorder(body)
    assert new["messages"][:4] == body["messages"][:4]
    moved = json.loads(text_of(new))
    assert moved[0] == {"text": LONG["C"], "score": 0.0}
    assert moved[1]["score"] == 1 / 7
    assert 'document that begins with "B says: a long' in moved[1]["text"]


def test_an_agents_next_request_extends_the_last_one() -> None:
    contents = [results("A", "B"), xml("B", "C"), results("C", "A"), results("D", "B")]
    sent = [boost(Booster(), agent(*contents[:n]))["messages"] for n in (1, 2, 3, 4)]
    for before, now in pairwise(sent):
        assert now[: len(before)] == before
    assert [json.dumps(sent[-1]).count(LONG[name]) for name in "ABCD"] == [1] * 4


def test_documents_behind_a_question_are_not_ordered() -> None:
    found = find(agent(results("A", "B"), results("A", "C")))
    assert found is not None
    assert found.documents == ()
    assert (found.num_later, found.num_repeated) == (4, 1)
    assert find(agent(results("A", "B"))) is None


def test_the_longest_list_in_front_is_ordered() -> None:
    body = {
        "messages": [
            {"role": "system", "content": "Use:\n" + xml("A", "B", "E")},
            {"role": "user", "content": xml("C", "B", "D") + "\nWhy?"},
        ]
    }
    found = find(body)
    assert found is not None
    assert (len(found.documents), found.num_later, found.num_repeated) == (3, 3, 1)
    new = reorder(body, [1, 0, 2])
    assert text_of(new, 0).startswith("Use:\n" + xml("B", "A", "E") + "\n\nDocuments by relevance")
    question = text_of(new)
    assert question.startswith(xml("C") + "\n<document>Please refer to the document that begins")
    assert question.endswith("</document>\n" + xml("D") + "\nWhy?")


def test_without_deduplication_or_location_hints_nothing_is_referred_to() -> None:
    body = agent(results("A", "B"), results("A", "B"))
    assert find(body) is not None
    for sections in ({"dedup": {"enabled": False}}, {"hints": {"location": False}}):
        assert find(body, Settings(**sections)) is None  # type: ignore[arg-type]


def test_a_reference_is_never_ambiguous_or_longer_than_the_text() -> None:
    same_start = "the same beginning of a text " * 20
    first = json.dumps([{"text": same_start + "one"}, {"text": same_start + "two"}])
    assert find(agent(first, first)) is None
    short = json.dumps([{"text": "short one"}, {"text": "short two"}])
    assert find(agent(short, short)) is None


JSON_RESULTS = [
    '{"query": "q", "results": [{"title": "t", "content": %s}, {"content": %s}]}',
    '[ {"page_content": %s, "metadata": {"text": 3}} ,\n {"id": 7, "page_content": %s} ]',
    '{"documents":[{"snippet":%s},{"snippet":%s}],"took":1.50}',
    '{"search_query": ["q"], "data": [{"score": 0.9, "content": [{"type": "text", "text": %s}]}, '
    '{"score": 0.8, "content": [{"type": "text", "text": %s}]}], "has_more": false}',
    '{"content": [{"type": "text", "text": %s}, {"type": "text", "text": %s}], "isError": false}',
    '{"content": [{"type": "resource", "resource": {"uri": "f://a", "text": %s}}, '
    '{"type": "resource", "resource": {"uri": "f://b", "text": %s}}]}',
    '{"a": {"citations": 1}, "citations": [{"id": "text", "text": %s}, {"id": "b", "text": %s}]}',
]


@pytest.mark.parametrize("result", JSON_RESULTS)
def test_json_results_are_found_in_tool_messages_and_keep_their_spelling(result: str) -> None:
    text = result % (json.dumps(LONG["A"]), json.dumps(LONG["B"]))
    new = text_of(reorder(agent(text, text)))
    references = [reference(new, name) for name in "AB"]
    assert new == result % tuple(json.dumps(reference) for reference in references)


def test_langchain_pairs_are_found_in_tool_messages() -> None:
    text = f"Source: {{'f': 1}}\nContent: {LONG['A']}\n\nSource: {{'f': 2}}\nContent: {LONG['B']}"
    new = text_of(reorder(agent(text, text)))
    one, two = reference(new, "A"), reference(new, "B")
    assert (
        new.rstrip() == f"Source: {{'f': 1}}\nContent: {one}\n\nSource: {{'f': 2}}\nContent: {two}"
    )


def reference(text: str, name: str) -> str:
    """The reference to a document as the model reads it."""
    text = text.replace('\\"', '"')
    start = text.rindex("Please refer", 0, text.index(f'begins with "{name} says'))
    return text[start : text.index("conversation.", start) + len("conversation.")]


@pytest.mark.parametrize(
    "result",
    [
        '[{"text": "a b"}, {"other": "c d"}]',
        '{"results": [{"text": "a"}, {"text": "b"}], "documents": []}',
        '{"old": [{"text": "a"}, {"text": "b"}], "new": [{"text": "c"}, {"text": "d"}]}',
        '[{"text": "a b"}, {"text": "c d"}',
        '[{"text": "a b"}, {"text": "c d"}] and more',
        "[1, 2, 3]",
        "[" * 5000,
        '{"results": ' + "[" * 5000,
        "no JSON at all",
        "",
    ],
)
def test_other_results_are_left_alone(result: str) -> None:
    assert find(agent(result, result)) is None


def test_text_parts_of_a_tool_message_are_looked_into() -> None:
    parts = [{"type": "text", "text": xml("A", "B")}]
    new = reorder(agent(parts, [{"type": "text", "text": "FoundDocuments:"}, *parts]))
    moved = text_of(new)
    assert moved[0] == {"type": "text", "text": "FoundDocuments:"}
    assert moved[1]["text"].count("document that begins with") == 2


def document_block(name: str, **fields: Any) -> dict[str, Any]:
    source = {"type": "text", "media_type": "text/plain", "data": LONG[name]}
    return {"type": "document", "source": source, "title": f"title {name}", **fields}


def search_result(name: str, **fields: Any) -> dict[str, Any]:
    content = [{"type": "text", "text": LONG[name]}]
    return {"type": "search_result", "source": "s", "title": name, "content": content, **fields}


def test_document_blocks_are_moved_as_they_are() -> None:
    blocks = [document_block("A", context="c"), search_result("B"), document_block("C")]
    question = {"type": "text", "text": "Why?"}
    body = {**user([*blocks, question]), "system": "Be brief."}
    content = text_of(reorder(body, [2, 0, 1]))
    assert all(new is blocks[i] for new, i in zip(content, (2, 0, 1), strict=False))
    assert content[3]["text"].startswith("Documents by relevance")
    assert '"title A" >> "B" >> "title C"' in content[3]["text"]
    assert content[4] is question


def test_blocks_move_in_front_of_a_cache_mark_which_stays_and_none_across_it() -> None:
    mark = {"cache_control": {"type": "ephemeral"}}
    blocks = [document_block(name) for name in "ABCD"]
    marked = [*blocks[:2], {**blocks[2], **mark}, blocks[3], {"type": "text", "text": "Why?"}]
    content = text_of(reorder(user(marked), [2, 0, 1]))
    assert content[:3] == [blocks[2], blocks[0], {**blocks[1], **mark}]
    assert content[-2:] == marked[-2:]
    assert text_of(reorder(user([*blocks[:3], *marked[3:]]), [2, 0, 1, 3]))[:2] == content[:2]


@pytest.mark.parametrize("mark", ["cache_control", "prompt_cache_breakpoint"])
def test_documents_in_a_text_with_a_cache_mark_move_within_it(mark: str) -> None:
    part = {"type": "text", "text": xml("A", "B"), mark: {"type": "ephemeral"}}
    (moved,) = text_of(reorder(user([part]), [1, 0]))
    assert moved[mark] == part[mark]
    assert moved["text"] == text_of(reorder(user(xml("A", "B")), [1, 0]))
    message = {**user(xml("A", "B"))["messages"][0], mark: {"type": "ephemeral"}}
    assert reorder({"messages": [message]}, [1, 0])["messages"][0][mark] == message[mark]


def test_document_blocks_whose_positions_are_cited_stay() -> None:
    cited = {"citations": {"enabled": True}}
    blocks = [document_block("A", **cited), document_block("B", **cited)]
    assert find(user(blocks)) is None
    uncited = [document_block("A"), document_block("B", citations={"enabled": False})]
    assert find(user(uncited)) is not None


def test_blocks_inside_a_tool_result_are_referred_to() -> None:
    def turn(*names: str) -> dict[str, Any]:
        content = [search_result(name) for name in names]
        return {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "t", "content": content}],
        }

    asked = {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "s"}]}
    body = {"messages": [user("Who?")["messages"][0], asked, turn("A", "B"), asked, turn("B", "C")]}
    moved = text_of(reorder(body))[0]["content"]
    assert "begins with" in moved[0]["content"][0]["text"]
    assert {k: v for k, v in moved[0].items() if k != "content"} == {
        "type": "search_result",
        "source": "s",
        "title": "B",
    }
    assert moved[1] == search_result("C")


def test_documents_in_the_system_field_come_first() -> None:
    body = {"system": [{"type": "text", "text": xml("A", "B")}], **user(xml("B", "C"))}
    new = reorder(body, [1, 0])
    assert new["system"][0]["text"].startswith(xml("B", "A"))
    assert "begins with" in text_of(new)


def test_a_text_before_a_run_of_blocks_is_read_first() -> None:
    content = [{"type": "text", "text": xml("A", "B")}, document_block("B"), document_block("C")]
    moved = text_of(reorder(user(content), [1, 0]))
    assert moved[0]["text"].startswith(xml("B", "A"))
    assert "begins with" in moved[1]["source"]["data"]
    assert moved[2] is content[2]


def test_the_input_of_responses_is_looked_into() -> None:
    call = {"type": "function_call", "call_id": "c", "name": "s", "arguments": "{}"}
    search = {"type": "file_search_call", "id": "f", "results": [
        {"file_id": "1", "text": LONG["A"], "score": 0.5}, {"file_id": "2", "text": LONG["D"]}
    ]}  # fmt: skip
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": xml("A", "B")}]},
        call,
        {"type": "function_call_output", "call_id": "c", "output": results("B", "C")},
        search,
    ]
    body = {"model": "m", "instructions": "Be brief.", "input": items}
    new = reorder(body, [1, 0])["input"]
    assert new[0]["content"][0]["text"].startswith(xml("B", "A"))
    assert new[1] is call
    assert "begins with" in json.loads(new[2]["output"])[0]["text"]
    assert "begins with" in new[3]["results"][0]["text"]
    assert new[3]["results"][0]["score"] == 0.5
    assert new[3]["results"][1] is search["results"][1]  # type: ignore[index]


@pytest.mark.parametrize("field", ["messages", "input"])
def test_a_later_turn_finds_numbered_documents_as_the_first_did(field: str) -> None:
    listed = "\n\n".join(f"Document {n}: {LONG[name]}" for n, name in enumerate("ABD", 1))
    turns = [{"role": "user", "content": f"Answer.\n\n{listed}\n\nQuestion: why?"}]
    body = {"model": "m", field: turns, "store": False}
    first = reorder(body, [1, 2, 0])[field]
    body[field] = [
        *turns,
        {"role": "assistant", "content": "So."},
        {"role": "user", "content": "And?"},
    ]
    assert reorder(body, [1, 2, 0])[field][:1] == first != turns


def test_an_input_that_goes_on_elsewhere_is_not_ordered() -> None:
    assert find({"input": xml("A", "B")}) is not None
    assert find({"input": xml("A", "B"), "previous_response_id": "r"}) is None
    items = [{"role": "user", "content": xml("A", "B")}]
    assert find({"input": items, "conversation": "c"}) is None


def test_a_prompt_is_looked_into() -> None:
    body = {"model": "m", "prompt": xml("A", "B") + "\nWhy?"}
    assert reorder(body, [1, 0])["prompt"].startswith(xml("B", "A"))


def test_two_equal_documents_of_one_list_both_stay() -> None:
    text = xml("A", "B", "A") + "\nWhich one is there twice?"
    assert text_of(boost(Booster(), user(text))) == text
    booster = Booster()
    boost(booster, user(xml("B", "C") + "\nWhy?"))
    shown = text_of(boost(booster, user(text)))
    assert shown.startswith(xml("B"))
    assert [shown.count(LONG[name]) for name in "AB"] == [2, 1]


def test_a_note_is_a_paragraph_where_the_question_goes_on_in_the_line() -> None:
    for behind, gap in ((" Who signed?", "\n\n"), ("\n\nWho signed?", ""), ("", "")):
        shown = text_of(reorder(user(xml("A", "B") + behind), [1, 0]))
        assert "\n\nDocuments by relevance" in shown
        assert shown.endswith(f"document 1{gap}{behind}")


def test_two_equal_document_blocks_both_stay() -> None:
    blocks = [document_block(name) for name in "ABA"]
    booster = Booster()
    boost(booster, user([document_block(name) for name in "BC"]))
    sent = boost(booster, user(blocks))["messages"][0]["content"]
    assert [block for block in sent if block["type"] == "document"] == [
        blocks[i] for i in (1, 0, 2)
    ]


def test_documents_of_the_template_arguments_are_moved() -> None:
    documents = [{"title": "t1", "text": "one"}, {"title": "t2", "text": "two"}]
    body = user("Why?", chat_template_kwargs={"documents": documents, "enable_thinking": False})
    new = reorder(body, [1, 0])
    assert new["chat_template_kwargs"]["documents"] == documents[::-1]
    assert new["chat_template_kwargs"]["enable_thinking"] is False
    assert '"t1" >> "t2"' in text_of(new)


def test_texts_in_messages_can_be_switched_off() -> None:
    assert find(user(xml("A", "B")), Settings(formats={"in_text": False})) is None


def test_a_text_that_was_searched_before_is_judged_by_itself_and_by_its_role() -> None:
    formats = make_formats(Settings())
    text = xml("A", "B") + "\n\nThat was all."
    for _ in range(2):  # behind the list of a tool nothing may stand
        assert find_format(formats, user(text)) is not None
        with pytest.raises(NothingToDoError):
            find_format(formats, agent(xml("A", "B"), text))


@pytest.mark.parametrize(
    "said",
    [
        *("What does the second document say?", "Summarise the last passage."),
        *("the first two sources", "Was sagt das zweite Dokument?", "第二个文档说什么"),
        *("Open the 2nd pdf", "the second one", "la última fuente", "the third search result"),
        *("They are sorted from newest to oldest.", "Later documents override earlier ones."),
    ],
)
def test_documents_stay_where_their_places_are_named(said: str) -> None:
    """The order says which one is meant."""
    system, asked = {"role": "system", "content": xml("A", "B")}, {"role": "user", "content": said}
    for messages in (
        [{"role": "user", "content": f"{xml('A', 'B')}\n\n{said}"}],
        [{"role": "user", "content": f"{said}\n\n{xml('A', 'B')}"}],
        [system, asked],
        [{"role": "system", "content": said}, {"role": "user", "content": xml("A", "B")}],
        [{**system, "role": "user"}, asked],
        [system, {**asked, "role": "system"}, {"role": "user", "content": "Why?"}],
        [{"role": "system", "content": [text_part(xml("A", "B")), text_part(said)]}],
    ):
        with pytest.raises(AmbiguousDocumentsError, match=r"by its place|their order means"):
            reorder({"model": "m", "messages": messages})
    held = f"<documents>\n{xml('A', 'B')}\n</documents>\n\n{said}"
    with pytest.raises(OrderedDocumentsError):  # not that nothing shows where documents end
        reorder({"model": "m", "messages": [{"role": "user", "content": held}]})
    answer = {"role": "assistant", "content": "So."}
    for earlier in ([system, {"role": "user", "content": "Why?"}], [{**system, "role": "user"}]):
        found = find({"model": "m", "messages": [*earlier, answer, asked]})
        assert found is not None, "they have been sent"


@pytest.mark.parametrize(
    "said",
    [
        *("第一个登上月球的人是谁", "劳动法第四十一条规定了什么", "Write the final document."),
        *("the first source of truth", "What is the last file format?", "a blast document"),
    ],
)
def test_other_things_have_places_too(said: str) -> None:
    messages = [{"role": "system", "content": xml("A", "B")}, {"role": "user", "content": said}]
    assert find({"model": "m", "messages": messages}) is not None


def test_a_message_that_follows_without_an_answer_changes_nothing() -> None:
    listed = "\n\n".join(f"Document {n}: {LONG[name]}" for n, name in enumerate("ABD", 1))
    turns = [{"role": "user", "content": f"Answer.\n\n{listed}\n\nQuestion: why?"}]
    first = reorder({"model": "m", "messages": turns}, [1, 2, 0])["messages"]
    more = {"model": "m", "messages": [*turns, {"role": "user", "content": "Still there?"}]}
    assert reorder(more, [1, 2, 0])["messages"][:1] == first != turns
