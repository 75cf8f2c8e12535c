"""For random bodies: nothing is lost, nothing else changes, the same order gives the same bytes."""

import json
from collections import Counter
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from ragboost.formats.text import find_groups, xml_tags

from ragboost.config import Settings
from tests.formats.rewriting import find, reorder, text_of, user

PLAIN = Settings(hints={"order": False})
MARK_PIECES = [
    "<TAG>",
    "</TAG>",
    "<TAG",
    "<TAG ",
    "<TAG\n",
    "TAG>",
    "<document_content>",
    "<doc",
    "<",
    "</",
    ">",
    "/>",
    "<TAG/>",
    "word ",
    "word " * 100,
    "\ud800",
]
HOSTILE = [
    "<document>",
    "</document>",
    '<document index="1">',
    "</documents>",
    "<doc>x</doc>",
    "Document 1: a b",
    "\nDocument 2: c d",
    "\n[Doc_1] e f",
    "Source: {}\nContent: g",
    "---------------------\n",
    "Context information is below.\n---------------------\n",
    "file_path: a\n\n",
    "```",
    "[1] h i\n[2] j k",
    "</context>",
    '[{"text": "l"}, {"text": "m"}]',
    "\ud800",
    "\u2028",
    "\x00",
    "é\U0001f600",
    "\n\n",
    " ",
    '"',
    "\\",
    "Question: n",
]
TEXTS = st.lists(st.sampled_from(HOSTILE) | st.text(max_size=8), max_size=12).map("".join)
SAFE = st.text(st.characters(exclude_characters="<>\n"), min_size=1, max_size=30).filter(
    lambda text: text.strip() != ""
)


def frame(name: str, documents: list[str]) -> str:
    """Documents in one of the shapes, in front of a question."""
    if name == "xml":
        blocks = "\n".join(f'<document id="d{i}">{d}</document>' for i, d in enumerate(documents))
        return f"<documents>\n{blocks}\n</documents>\nWhy?"
    if name == "llama":
        dashes = "\n---------------------\n"
        nodes = "\n\n".join(f"file_path: f\n\n{d}" for d in documents)
        return f"Context information is below.{dashes}{nodes}{dashes}Query: why?"
    return "\n".join(f"<<{d}>>" for d in documents) + "\nWhy?"


SETTINGS = Settings(
    hints={"order": False},
    formats={"delimiters": [{"name": "angle", "start": "<<", "end": ">>"}]},
)


@given(st.sampled_from(["xml", "llama", "angle"]), st.lists(SAFE, min_size=2, max_size=6))
@settings(max_examples=100, deadline=None)
def test_the_identical_order_gives_the_same_bytes(name: str, documents: list[str]) -> None:
    body = user(frame(name, documents))
    assert reorder(body, None, SETTINGS) == body


@given(
    st.sampled_from(["xml", "llama", "angle"]),
    st.lists(SAFE, min_size=2, max_size=6, unique=True),
    st.randoms(use_true_random=False),
)
@settings(max_examples=100, deadline=None)
def test_another_order_only_permutes_the_blocks(name: str, documents: list[str], rng: Any) -> None:
    body = user(frame(name, documents))
    found = find(body, SETTINGS)
    assert found is not None
    order = list(range(len(found.documents)))
    rng.shuffle(order)
    text = text_of(reorder(body, order, SETTINGS))
    again = find(user(text), SETTINGS)
    assert again is not None
    assert [d.text for d in again.documents] == [found.documents[i].text for i in order]
    back = [order.index(i) for i in range(len(order))]
    assert text_of(reorder(user(text), back, SETTINGS)) == text_of(body)


@given(TEXTS, st.booleans(), st.randoms(use_true_random=False))
@settings(max_examples=300, deadline=None)
def test_hostile_text_is_never_lost(text: str, is_tool: bool, rng: Any) -> None:
    for group in find_groups(text, is_tool=is_tool):
        order = list(range(len(group.blocks)))
        rng.shuffle(order)
        edit = group.reordered(order, {})
        new = text[: edit.start] + edit.new + text[edit.end :]
        assert Counter(new) == Counter(text)
        for block in group.blocks:
            assert text[block.start : block.end] in new


@given(st.lists(TEXTS, min_size=1, max_size=4), st.randoms(use_true_random=False))
@settings(max_examples=200, deadline=None)
def test_a_hostile_payload_keeps_every_document(texts: list[str], rng: Any) -> None:
    roles = ["system", "user", "tool", "user"]
    body = {"messages": [{"role": r, "content": t} for r, t in zip(roles, texts, strict=False)]}
    found = find(body, PLAIN)
    if found is None:
        return
    order = list(range(len(found.documents)))
    rng.shuffle(order)
    new = reorder(body, order, PLAIN)
    if not found.num_repeated and "Cite documents" not in json.dumps(new):
        assert Counter(json.dumps(new)) == Counter(json.dumps(body))
    assert [m["role"] for m in new["messages"]] == [m["role"] for m in body["messages"]]


@given(
    st.lists(st.lists(st.sampled_from("ABCDEF"), min_size=2, max_size=4), min_size=2, max_size=5)
)
@settings(max_examples=50, deadline=None)
def test_a_reference_has_its_target_earlier_in_the_payload(turns: list[list[str]]) -> None:
    texts = {name: f"{name} is the beginning. " + f"And {name} goes on. " * 20 for name in "ABCDEF"}
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Why?"}]
    for names in turns:
        results = [{"text": texts[name]} for name in names]
        messages.append({"role": "assistant", "content": "", "tool_calls": []})
        messages.append({"role": "tool", "content": json.dumps(results)})
    found = find({"messages": messages})
    new = reorder({"messages": messages})["messages"] if found else messages
    standing: set[str] = set()
    for names, message in zip(turns, new[2::2], strict=True):
        for name, result in zip(names, json.loads(message["content"]), strict=True):
            if result["text"] == texts[name]:
                assert name not in standing
                standing.add(name)
            else:
                assert name in standing
                assert f'"{name} is the beginning.' in result["text"]


@given(
    st.sampled_from(xml_tags.TAGS),
    st.lists(
        st.sampled_from(MARK_PIECES).flatmap(lambda piece: st.integers(1, 40).map(piece.__mul__)),
        max_size=40,
    ),
)
@settings(max_examples=300, deadline=None)
def test_marks_of_a_tag_are_those_that_one_expression_finds(tag: str, pieces: list[str]) -> None:
    text = "".join(piece.replace("TAG", tag) for piece in pieces)
    expression = xml_tags._MARKS[tag]
    found = [mark.span() for mark in xml_tags._marks(text, tag, text.find("<"))]
    assert found == [mark.span() for mark in expression.finditer(text)]
