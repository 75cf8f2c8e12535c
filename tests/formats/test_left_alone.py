"""What looks like documents and is none: code, lists, citations, markdown. It passes unchanged."""

import pytest

from tests.formats.rewriting import find, user

LEFT_ALONE = {
    "plain": "Who signed the lease?",
    "one document": "<document>only one</document> Who?",
    "ordered list": "Do this:\n1. open the file\n2. read the line\n3. close the file\n\nWhy three?",
    "citations": "As shown [1] and later [2].\n\n[1] A. Author, Book, 1999\n[2] B. Other, 2001",
    "footnotes": "Text.[^1]\n\n[^1]: first note here\n[^2]: second note here",
    "links": "[1]: https://example.org/one two\n[2]: https://example.org/two three",
    "steps": "Step 1: mix the flour\n\nStep 2: add the water\n\nStep 3: bake it",
    "headings": "# Part 1\nsome text\n\n# Part 2\nmore text",
    "code in a fence": "Fix this:\n```xml\n<documents>\n<document>a</document>\n"
    "<document>b</document>\n</documents>\n```\nIt does not parse.",
    "numbered code": "```\n[Document 1] a b\n\n[Document 2] c d\n\n```\nWhat is this?",
    "python": "def parse(text):\n    # Document 1: not this\n    return t.split('Document 2:')\n",
    "code without a fence": "Why?\n\nSOURCE = '''\nDocument 1: foo bar\nDocument 2: baz qux\n'''\n",
    "notes": "My plan:\n\nDocument 1: the proposal for the board\nDocument 2: the budget\n\nOk?",
    "mongo": 'db.docs.find({"document": 1})  // <document> is a tag in our docs',
    "html": "<div><p>one</p><p>two</p></div>",
    "unclosed": "<document>one <document>two</document> <document>three</document>",
    "self-closing": '<document src="a"/> <document src="b"/>',
    "nested": "<document><document>a</document> <document>b</document></document>",
    "text between": "<document>a</document> and then <document>b</document>",
    "numbering with a gap": "[Document 1] a b\n\n[Document 3] c d\n\nWhich?",
    "numbering repeated": "[Doc 1] a b\n\n[Doc 2] c d\n\n[Doc 2] e f\n\nWhich?",
    "numbers in prose": "See Document 1: the lease, and Document 2: the memo.",
    "list of names": "Source 1: https://a.example\nSource 2: https://b.example\n\nAre these good?",
    "llama_index without metadata": "Context information is below.\n---------------------\n"
    "One text.\n\nAnother text.\n---------------------\nQuery: which?",
    "llama_index refine": "Using the context below, refine. context information below\n-----\n"
    "file_path: a\n\nx\n\nfile_path: b\n\ny\n-----\nExisting Answer:\nz\n-----\n",
    "langchain without marks": "Use the following pieces of context to answer the question at the "
    "end.\n\nFirst text.\n\nSecond text.\n\nQuestion: which?\nHelpful Answer:",
    "yaml": "---\ntitle: one\n\nbody\n---\ntitle: two\n\nbody",
    "json from a user": '[{"text": "one"}, {"text": "two"}]',
}


@pytest.mark.parametrize("name", LEFT_ALONE)
def test_it_is_left_alone(name: str) -> None:
    assert find(user(LEFT_ALONE[name])) is None


def test_what_the_model_said_is_left_alone() -> None:
    text = "<doc>one</doc> <doc>two</doc>"
    body = {
        "messages": [
            {"role": "user", "content": "Write two."},
            {"role": "assistant", "content": text},
            {"role": "user", "content": "Thanks."},
        ]
    }
    assert find(body) is None


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
