"""What looks like documents and is none: examples, transcripts, steps, code."""

import json

import pytest

from ragboost.requests.formats.frames import scan
from ragboost.requests.formats.instructions.questions import Question
from tests.requests.formats.frames.texts import LEASE, NOISE, PETS, RENT, elements, numbered, prompt
from tests.requests.formats.rewriting import find

LONG = [f"{text} {text}" for text in (LEASE, RENT, PETS, NOISE)]
ORDERED_TAGS = (
    *("example", "step", "message", "turn", "question", "option", "rule", "tool", "row"),
    *("email", "post", "reply", "skill", "testcase", "trans-unit", "log_entry"),
    *("step_result", "turn_summary", "tool_description"),
)
ORDERED_LABELS = (
    "Step {}:",
    "Example {}:",
    "Question {}:",
    "Turn {}:",
    "Schritt {}:",
    "步骤{}\uff1a",
    "Step number {}:",
    "--- Page {} ---\n",
    "### Act {}\n",
    "Seite {} :",
    "Email {}:",
    "Claim {}:",
)
LEFT_ALONE = {
    "plain": "Who signed the lease?",
    "one document": f"<document>{LEASE}</document> Who?",
    "ordered list": "Do this:\n1. open the file\n2. read the line\n3. close the file\n\nWhy three?",
    "long steps": "Do this:\n\n" + numbered("{}.")(LONG) + "\n\nWhy?",
    "citations": "As shown [1] and later [2].\n\n[1] A. Author, Book, 1999\n[2] B. Other, 2001",
    "footnotes": "Text.[^1]\n\n[^1]: first note here\n[^2]: second note here",
    "links": "[1]: https://example.org/one two\n[2]: https://example.org/two three",
    "headings": "# Part 1\nsome text\n\n# Part 2\nmore text",
    "code in a fence": f"Fix this:\n```xml\n{elements('document')(LONG)}\n```\nIt does not parse.",
    "python": "def parse(text):\n    # Document 1: not this\n    return t.split('Document 2:')\n",
    "code without a fence": "Why?\n\nSOURCE = '''\nDocument 1: foo bar\nDocument 2: baz qux\n'''\n",
    "notes": "My plan:\n\nDocument 1: the proposal for the board\nDocument 2: the budget\n\nOk?",
    "mongo": 'db.docs.find({"document": 1})  // <document> is a tag in our docs',
    "html": f"<div><p>{LEASE}</p><p>{RENT}</p></div>",
    "table": "<table><tr><td>a</td></tr><tr><td>b</td></tr></table>",
    "self-closing": '<document src="a"/> <document src="b"/>',
    "nested": f"<document><document>{LEASE}</document> <document>{RENT}</document></document>",
    "numbers in prose": "See Document 1: the lease, and Document 2: the memo.",
    "list of names": "Source 1: https://a.example\nSource 2: https://b.example\n\nAre these good?",
    "file names": "<file>src/a.py</file>\n<file>src/b.py</file>\nWhich is newer?",
    "options": "Option 1: red\n\nOption 2: blue\n\nWhich?",
    "yaml": "---\ntitle: one\n\nbody\n---\ntitle: two\n\nbody",
    "records": "".join(
        f"<item><id>{i}</id><price>{i}0</price><unit>euro</unit></item>\n" for i in range(9)
    ),
    "dialogue": f"User: {LEASE}\nAssistant: {RENT}\nUser: {PETS}\nAssistant: {NOISE}",
    "transcript": json.dumps([{"speaker": "A", "text": text} for text in LONG]),
    "recording in ms": json.dumps([{"start_ms": 1, "endTime": 2, "text": t} for t in LONG]),
    "captions": json.dumps([{"begin": 1, "to": 2, "content": text} for text in LONG]),
    "thread": json.dumps([{"from": "ann", "text": text} for text in LONG]),
    "messages": json.dumps([{"author": "ann", "time": "10:12", "text": text} for text in LONG]),
    "recording": json.dumps([{"start": 1.5, "end": 2.5, "text": text} for text in LONG]),
    "mails": "\n\n".join(f"From: Ada\nSent: May\nSubject: rent\n\n{text}" for text in LONG),
    "log": "\n".join(json.dumps({"level": "INFO", "text": text}) for text in LONG),
    "log elements": elements("logEntry")(LONG),
    "bibliography": numbered("[{}]")([f"A. Author, {text} Press, 1999." for text in LONG]),
    "web references": numbered("[{}]")([f"{text} https://a.example, 2024." for text in LONG]),
    "reference elements": elements("ref")([f"{t} Journal of {t} 3 (4), 2001." for t in LONG]),
    "diff": "diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@\n-a\n+b\n",
    "schema": '{"type": "object", "properties": {"a": {"type": "string"}}}\n{"type": "array"}',
}


@pytest.mark.parametrize("is_tool", [False, True])
@pytest.mark.parametrize("name", LEFT_ALONE)
def test_it_is_left_alone(name: str, is_tool: bool) -> None:
    text = LEFT_ALONE[name]
    assert scan(text, is_tool=is_tool, question=Question(2 - 2 * is_tool)).groups == ()
    assert scan(prompt(text), question=Question.ANNOUNCED).groups == ()


@pytest.mark.parametrize("tag", ORDERED_TAGS)
def test_elements_whose_order_is_their_meaning_stay(tag: str) -> None:
    for name in (tag, tag.title(), f"few_shot_{tag}"):
        assert scan(f"<{tag}s>\n{elements(name)(LONG)}\n</{tag}s>").groups == ()


@pytest.mark.parametrize("label", ORDERED_LABELS)
def test_labels_whose_order_is_their_meaning_stay(label: str) -> None:
    for text in (prompt(numbered(label)(LONG)), f"<x>\n{numbered(label)(LONG)}\n</x>"):
        assert scan(text, question=Question.ANNOUNCED).groups == ()


def test_short_elements_are_documents_only_if_their_name_says_so() -> None:
    short = [LEASE[:60], RENT[:60], PETS[:60]]
    assert scan(elements("fundstelle")(short)).groups == ()
    assert len(scan(elements("document")(short)).groups) == 1


@pytest.mark.parametrize("listed", [json.dumps(LONG), numbered("[{}]")(LONG)])
def test_instructions_may_ask_for_work_on_each_element(listed: str) -> None:
    said = {"role": "user", "content": prompt(listed)}
    for text, is_found in (("Translate each text into French.", False), ("Be polite.", True)):
        found = find({"messages": [{"role": "system", "content": text}, said]})
        assert (found is not None) == is_found


def test_places_in_a_text_are_not_times() -> None:
    nodes = [{"start_char_idx": 0, "end_char_idx": 9, "text": text} for text in LONG]
    assert find({"messages": [{"role": "user", "content": prompt(json.dumps(nodes))}]})


def test_what_the_model_said_is_left_alone() -> None:
    said = {"role": "assistant", "content": elements("doc")([LEASE, RENT])}
    asked, thanks = ({"role": "user", "content": text} for text in ("Write two.", "Thanks."))
    assert find({"messages": [asked, said, thanks]}) is None


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"messages": None},
        {"messages": [None, 1, "x", [], {"role": "user"}, {"role": "user", "content": 3}]},
        {"messages": [{"role": "user", "content": [None, "x", {"type": "text", "text": None}]}]},
        {"messages": [{"role": ["user"], "content": "x"}]},
        {"input": {"role": "user"}},
        {"prompt": ["a", "b"]},
        {"system": 7, "messages": []},
        {"messages": [{"role": "user", "content": [{"type": "document"}, {"type": "document"}]}]},
    ],
)
def test_odd_bodies_do_no_harm(body: dict[str, object]) -> None:
    find(body)
