"""Files in code fences under their names, and other code."""

import json

import pytest

from ragboost.requests.formats.frames import scan
from tests.requests.formats.frames.texts import LEASE, PLAIN, RENT, elements, prompt, texts_of
from tests.requests.formats.rewriting import reorder, text_of, user

CODE = 'def sign(lease):\n    """<doc>x</doc> [1] y"""\n\n    return lease.sign()'


def fenced(heading: str, *texts: str) -> str:
    listed = json.dumps([{"id": n, "content": text} for n, text in enumerate(texts, 1)])
    return f"Why?\n\n{heading}\n\n```json\n{listed}\n```\n\nAnswer in English."


@pytest.mark.parametrize("heading", ["## Reference Materials:", "Documents:", "**Context**"])
def test_a_list_that_fills_the_block_below_its_name_is_found(heading: str) -> None:
    moved = text_of(reorder(user(fenced(heading, LEASE, RENT)), [1, 0]))
    begin = fenced(heading, RENT, LEASE).removesuffix("\n\nAnswer in English.")
    assert moved.startswith(begin)
    assert moved.endswith("Answer in English.")


@pytest.mark.parametrize("heading", ["Example documents:", "Request body:", "What are documents?"])
def test_a_list_in_any_other_block_is_code(heading: str) -> None:
    assert scan(fenced(heading, LEASE, RENT)).groups == ()
    more = fenced("Documents:", LEASE, RENT) + "\n```\nmore\n```"
    assert scan(more).groups == ()


def files(name: str, *texts: str) -> str:
    blocks = [f"{name.format(len(text))}\n```python\n{text}\n```" for text in texts]
    return "\n\n".join(blocks)


@pytest.mark.parametrize("name", ["src/f{}.py", "**f{}.py**", "### File: lib/f{}.py", "@f{}.md:"])
def test_files_in_fences_under_their_names_are_documents(name: str) -> None:
    text = prompt(files(name, CODE, LEASE, RENT))
    assert texts_of(scan(text)) == [[CODE, LEASE, RENT]]
    moved = text_of(reorder(user(text), [2, 0, 1], PLAIN))
    assert moved == prompt(files(name, RENT, CODE, LEASE))


@pytest.mark.parametrize(
    "text",
    [
        files("", CODE, LEASE),
        files("f{}.py", CODE) + "\n\nand\n\n" + files("g{}.py", LEASE),
        files("f{}.py", CODE, LEASE) + "\n\n```\nno end",
        files("f{}.py", CODE, "x = 1"),
        "Before:\n" + files("f{}.py", CODE) + "\n" + files("After, f{}.py", LEASE),
    ],
)
def test_other_fences_are_left_alone(text: str) -> None:
    assert scan(prompt(text)).groups == ()


def test_a_list_inside_a_fence_is_code() -> None:
    for listed in (elements("document")([LEASE, RENT]), f"[Document 1] {LEASE}\n\n[Document 2] b"):
        assert scan(f"Fix this:\n```xml\n{listed}\n```\nIt does not parse.").groups == ()


def test_a_fence_that_begins_the_text_opens_a_code_block() -> None:
    assert scan("~~~\n" + elements("doc")([LEASE, RENT]) + "\n~~~").groups == ()
