"""JSON lists, JSON objects one after the other, and LangChain documents as Python prints them."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from ragboost.requests.formats.frames import scan
from tests.requests.formats.frames.texts import (
    DOCUMENTS,
    LEASE,
    PETS,
    PLAIN,
    RENT,
    prompt,
    texts_of,
)
from tests.requests.formats.rewriting import find, reorder, text_of, user

HOSTILE = [f'He said: "{LEASE}"\n\n<doc>a</doc>\t\\', f"[1] {RENT}\n[2] x", f"\u2028é {PETS}"]


def objects(documents: Sequence[str]) -> list[dict[str, object]]:
    return [{"id": i, "title": f"t{i}", "content": text} for i, text in enumerate(documents, 7)]


def lines(documents: Sequence[str]) -> str:
    return "\n".join(json.dumps(each, ensure_ascii=False) for each in objects(documents))


WRITERS = {
    "objects": lambda documents: json.dumps(objects(documents)),
    "indented": lambda documents: json.dumps(objects(documents), indent=2, ensure_ascii=False),
    "strings": lambda documents: json.dumps(list(documents)),
    "lines": lines,
    "LangChain.js": lambda documents: json.dumps(
        [
            {"pageContent": text, "metadata": {"source": f"{i}.md"}}
            for i, text in enumerate(documents)
        ]
    ),
    "in an object": lambda documents: json.dumps({"query": "q", "results": objects(documents)}),
    "behind a name": lambda documents: f"Context: {json.dumps(objects(documents))}",
    "strings behind a name": lambda documents: f"Retrieved documents: {json.dumps(documents)}",
    "in a fence": lambda documents: "------\n" + lines(documents) + "\n------",
}


def test_numbers_that_are_texts_belong_to_the_place_too() -> None:
    def listed(*documents: str) -> str:
        elements = [{"id": str(n), "content": text} for n, text in enumerate(documents, 1)]
        return prompt("\n------\n".join(json.dumps(each) for each in elements))

    moved = text_of(reorder(user(listed(LEASE, RENT, PETS)), [2, 0, 1], PLAIN))
    assert moved == listed(PETS, LEASE, RENT)


@pytest.mark.parametrize("name", WRITERS)
def test_json_is_found_in_any_message_whatever_its_strings_hold(name: str) -> None:
    write = WRITERS[name]
    for documents in (DOCUMENTS[:3], HOSTILE):
        assert texts_of(scan(prompt(write(documents)))) == [list(documents)]
    moved = text_of(reorder(user(prompt(write(HOSTILE[:2]))), [1, 0], PLAIN))
    assert [moved.index(json.dumps(text, ensure_ascii=False)[1:-1]) for text in HOSTILE[:2]]
    assert texts_of(scan(moved)) == [HOSTILE[1::-1]]


def test_a_number_that_counts_the_objects_belongs_to_the_place() -> None:
    def write(*documents: str) -> str:
        return prompt(json.dumps([{"id": i, "text": t} for i, t in enumerate(documents, 1)]))

    moved = text_of(reorder(user(write(LEASE, RENT, PETS)), [2, 0, 1], PLAIN))
    assert moved == write(PETS, LEASE, RENT)


@pytest.mark.parametrize(
    "text",
    [
        '[{"text": "one"}, {"text": "two"}]',
        json.dumps([{"text": LEASE}, {"other": RENT}]),
        json.dumps([{"text": LEASE}, RENT]),
        json.dumps([["a", LEASE], ["b", RENT]]),
        json.dumps({"results": [{"text": LEASE}, {"text": RENT}], "documents": [1]}),
        json.dumps({"name": "f", "description": LEASE, "parameters": [{"text": LEASE}]}),
        json.dumps([{"text": LEASE}, {"text": RENT}])[:-1],
        f"Options: {json.dumps([LEASE, RENT])}",
        f"Context: {json.dumps([LEASE, RENT])} were compared.",
        f"Other: {json.dumps([LEASE, RENT])}",
        "Context: [ " * 5000,
        "[" * 5000,
        '{"results": ' + "[" * 5000,
    ],
)
def test_other_json_is_left_alone(text: str) -> None:
    assert scan(text).groups == ()
    assert scan(prompt(text)).groups == ()


def printed(*documents: str) -> str:
    each = [
        f"Document(metadata={{'source': 'f{len(text)}(1).pdf', 'page': 3}}, page_content={text!r})"
        for text in documents
    ]
    return f"[{', '.join(each)}]"


def test_langchain_documents_are_found_as_python_prints_them() -> None:
    documents = [LEASE, f"It's \"{RENT}\"\n\nDocument(page_content='x')", PETS]
    text = prompt(printed(*documents))
    (group,) = scan(text).groups
    assert [block.text for block in group.blocks] == [repr(each)[1:-1] for each in documents]
    moved = text_of(reorder(user(text), [2, 1, 0], PLAIN))
    assert moved == prompt(printed(*documents[::-1]))


def test_langchain_documents_that_do_not_end_are_left_alone() -> None:
    text = printed(LEASE, RENT)
    assert scan("\n" + text[:-2]).groups == ()
    assert scan(text.replace("), Document", ") and Document")).groups == ()


def test_elements_that_hold_printed_documents_are_documents_of_their_own() -> None:
    texts = [printed(LEASE, f"{RENT} </source>"), PETS, printed(RENT, PETS), LEASE]
    elements = [f'<source id="{i}">{text}</source>' for i, text in enumerate(texts, 1)]
    (group,) = scan(prompt("\n".join(elements))).groups
    assert [block.text for block in group.blocks] == texts
    assert group.is_numbered


def test_a_list_of_strings_that_are_sentences_is_no_list_of_documents() -> None:
    assert find(user('Sort these:\n["one sentence", "another one"]')) is None


def test_a_named_list_in_a_tools_result_stands_alone() -> None:
    """Beside other words it may be a part of a document that the result contains."""
    listed = f"Content: {json.dumps([LEASE, RENT, PETS])}"
    assert len(scan(listed, is_tool=True).groups) == 1
    for text in (f"Source: a.md\n{listed}", f"{listed}\n\nSource: b.md"):
        assert scan(text, is_tool=True).groups == ()


@pytest.mark.parametrize("inner", [{"metadata": {"id": "x9"}}, {"tags": ["id"]}, {"title": "id"}])
@pytest.mark.parametrize("at", [0, 1])
def test_numbers_that_one_object_has_twice_are_no_places(inner: dict[str, Any], at: int) -> None:
    rows: list[dict[str, Any]] = [{"id": n, "text": t} for n, t in enumerate((LEASE, RENT, PETS))]
    rows[at] |= inner
    text = prompt(json.dumps(rows))
    [group] = scan(text).groups
    assert not group.is_numbered
    moved = json.loads(text_of(reorder(user(text), [2, 0, 1], PLAIN)).split("\n\n")[1])
    assert moved == [rows[2], rows[0], rows[1]]
