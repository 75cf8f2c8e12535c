"""Documents below headers in the prompts of LlamaIndex and LangChain."""

import pytest

from ragboost.requests.formats.frames import scan
from tests.requests.formats.frames.texts import LEASE, NOISE, PETS, PLAIN, RENT, texts_of
from tests.requests.formats.rewriting import reorder, text_of, user

DASHES = "---------------------"
NODES = f"""page_label: 4
file_path: docs/lease.pdf

{LEASE}

{NOISE}

page_label: 9
file_path: docs/memo.pdf

{RENT}"""
PAIRS = f"Source: {{'file': 'lease.pdf'}}\nContent: {LEASE}\n\n{NOISE}\n\n" + (
    f"Source: {{'file': 'memo.pdf'}}\nContent: {RENT}"
)
SHAPES = {
    "llama_index question": f"Context information is below.\n{DASHES}\n{NODES}\n{DASHES}\n"
    "Given the context information and not prior knowledge, answer.\nQuery: Who?\nAnswer: ",
    "llama_index chat": f"You help.\nUse the context below.\n-----\n{NODES}\n-----\n",
    "langchain question": "Use the following pieces of context to answer the question "
    f"at the end.\n\n{PAIRS}\n\nQuestion: Who signed?\nHelpful Answer:",
    "container": f"<context>\n{PAIRS}\n</context>\n\nWho signed?",
}


@pytest.mark.parametrize("name", SHAPES)
def test_documents_below_headers_are_found_and_moved_with_them(name: str) -> None:
    text = SHAPES[name]
    assert texts_of(scan(text)) == [[f"{LEASE}\n\n{NOISE}", RENT]]
    one, two = (block for group in scan(text).groups for block in group.blocks)
    moved = text_of(reorder(user(text), [1, 0], PLAIN))
    gap = text[one.end : two.start]
    blocks = text[two.start : two.end] + gap + text[one.start : one.end]
    assert moved == text[: one.start] + blocks + text[two.end :]


@pytest.mark.parametrize("name", SHAPES)
def test_hints_stand_behind_the_frame(name: str) -> None:
    text = SHAPES[name]
    (group,) = scan(text).groups
    moved = text_of(reorder(user(text), [1, 0]))
    assert moved[: group.end].count("by relevance") == 0
    assert moved.endswith(text[group.end :])


def test_nodes_of_several_loaders_keep_their_metadata() -> None:
    """A page has a label, a text file has none."""
    text = SHAPES["llama_index question"].replace("page_label: 9\n", "")
    moved = text_of(reorder(user(text), [1, 0], PLAIN))
    assert f"\nfile_path: docs/memo.pdf\n\n{RENT}\n\npage_label: 4\n" in moved


def test_a_header_with_other_words_is_ambiguous() -> None:
    """It may as well be the text of a page."""
    result = scan(SHAPES["llama_index question"].replace("page_label: 9\n", "title: Memo\n"))
    assert (result.groups, result.frame) == ((), "page_label, file_path")
    assert "different keys" in result.problem


def test_headers_without_a_container_are_left_alone() -> None:
    """Any of them may be a part of the document above it."""
    for listed in (NODES, PAIRS):
        assert scan(f"Answer from this.\n\n{listed}\n\nWho signed?").groups == ()


@pytest.mark.parametrize(
    "tail", ["\n\nWho signed?", "\n\nAnswer: B.\n\nTask: who signed?", "\nAnswer.\nQuery: who?"]
)
def test_a_question_in_the_last_document_is_not_the_users(tail: str) -> None:
    """LangChain's label ends the documents, unless more than the word for the answer follows."""
    intro = "Use the following pieces of context to answer the question at the end."
    assert scan(f"{intro}\n\n{PAIRS}\n\nQuestion: What is due?{tail}").groups == ()


def test_langchains_prompt_inside_a_document_is_no_list_of_the_request() -> None:
    quoted = SHAPES["langchain question"]
    assert scan(quoted).groups
    assert scan(f"You help.\n\n- {RENT}\n- {quoted}").groups == ()


@pytest.mark.parametrize("inner", [f"{NOISE}\n{'-' * 16}\n{RENT}", f"{NOISE}\n{'-' * 16}"])
@pytest.mark.parametrize("at", [0, 1])
def test_a_rule_in_a_document_does_not_end_what_stands_below_one_rule(inner: str, at: int) -> None:
    texts = [LEASE, RENT]
    texts.insert(at + 1, inner)
    listed = "\n\n".join(f"Source: {n}.pdf\nContent: {text}" for n, text in enumerate(texts))
    intro = "Use the following pieces of context to answer the user's question."
    assert scan(f"{intro}\n{'-' * 16}\n{listed}").groups == ()


@pytest.mark.parametrize("tail", ["", "\n\nWho signed?", "\n\nQuestion: who?", "\nBe brief."])
def test_what_stands_below_one_rule_has_no_certain_end(tail: str) -> None:
    """LangChain's chat prompt: traffic tells what is a document."""
    intro = "Use the following pieces of context to answer the user's question."
    assert scan(f"{intro}\n{'-' * 16}\n{PAIRS}{tail}").groups == ()


def test_a_rule_below_a_title_begins_another_list() -> None:
    rule = "-" * 21
    both = f"Context:\n{rule}\n{NODES}\n\nContext:\n{rule}\n[1] {LEASE}\n\n[2] {RENT}"
    assert scan(f"{both}\n\nWho signed?").groups == ()


def test_headers_of_the_same_kind_behind_a_container_make_it_uncertain() -> None:
    rule = "-" * 21
    result = scan(f"Context:\n{rule}\n{NODES}\n{rule}\nmore\n\n{NODES}\nWho signed?")
    assert (result.groups, result.problem) == ((), "headers outside the container")


def test_a_document_that_begins_with_such_a_header_holds_a_list() -> None:
    def listed(inner: str) -> str:
        units = (f"Source: {name}\nContent: {text}" for name, text in (("a", LEASE), ("b", inner)))
        return "<context>\n{}\n</context>\n\nWho signed?".format("\n\n".join(units))

    assert scan(listed(f"Source: of this {RENT}")).groups
    result = scan(listed(f"Source: c\nContent: {RENT}\n\nSource: d\nContent: {PETS}"))
    assert (result.groups, result.problem) == ((), "headers that do not stand alike")


def test_headers_that_do_not_stand_alike_are_ambiguous() -> None:
    text = SHAPES["container"].replace("\n\nSource", "\nSource")
    text += f"\n\nSource: x\nContent: {PETS}"
    result = scan(text)
    assert result.groups == ()
    assert result.problem
