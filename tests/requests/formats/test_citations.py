"""Citations of numbered documents: what is one, in any pieces, and back again."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragboost.requests.formats.citations import CitationMap, CitationScanner, replaced

MOVED = CitationMap({"1": "3", "2": "1", "3": "2", "4": "4"}, words=("Document",))


@pytest.mark.parametrize(
    ("text", "mapped"),
    [
        ("It is 52 m high [1].", "It is 52 m high [3]."),
        ("The lease[2].", "The lease[1]."),
        ("In 2024[1][2][4], see", "In 2024[3][1][4], see"),
        ("[7][1]", "[7][3]"),
        ("See [1, 3] and [1,2;4]", "See [3, 2] and [3,1;4]"),
        ("Due [1 and 2]", "Due [3 and 1]"),
        ("As Document 2 says, document 3", "As Document 1 says, document 2"),
        ("(Document 2)", "(Document 1)"),
        ("[Document 2]", "[Document 1]"),
        ("Document [2]", "Document [1]"),
        ("Documents 1, 2 and 3", "Documents 3, 1 and 2"),
        ("Documents 1 and Document 2", "Documents 3 and Document 1"),
        ("documents 1 & 2.", "documents 3 & 1."),
        ("**Document 1**: a", "**Document 3**: a"),
        ("Document #2", "Document #1"),
        ("Document 2, 1 of May", "Document 1, 1 of May"),
        ("Document 2.\nDocument 1", "Document 1.\nDocument 3"),
        ("[1](https://a.example/1)", "[3](https://a.example/1)"),
        ("```\na\n```\n[1]", "```\na\n```\n[3]"),
        ("`a` [1]", "`a` [3]"),
        ("an open ` is closed by its line\n[1]", "an open ` is closed by its line\n[3]"),
        ("etc.[1]", "etc.[3]"),
        ("(2024)[1]", "(2024)[3]"),
        ("Due [2, p. 4] and [1; §3].", "Due [1, p. 4] and [3; §3]."),
        ("Document **2**, doc. Document 2's", "Document **1**, doc. Document 1's"),
        ("［2］ and [[1]](#a)", "［1］ and [[3]](#a)"),
        ("In Document 1, 2 and 4, it", "In Document 3, 1 and 4, it"),
        ("Document 1 and 2", "Document 3 and 1"),
        ("Document 1, 2, and Document 3", "Document 3, 1, and Document 2"),
        ("Sources: [1, 2]; see [3]", "Sources: [3, 1]; see [2]"),
        ('{"sources": [1, 2]}', '{"sources": [3, 1]}'),
        ("Paid by Ada.\n[1, 2]", "Paid by Ada.\n[3, 1]"),
        (
            "It is in C++ [1], ([2]) and **Ada** [3, 1]",
            "It is in C++ [3], ([1]) and **Ada** [2, 3]",
        ),
        ("- Ada\n\n    Signed it [1].", "- Ada\n\n    Signed it [3]."),
        ("<code>a</code> [1]", "<code>a</code> [3]"),
        ("Sources:\n- [1] Lease\n* [2] Rent", "Sources:\n- [3] Lease\n* [1] Rent"),
    ],
)
def test_citations_are_mapped(text: str, mapped: str) -> None:
    assert MOVED.apply(text) == mapped
    assert MOVED.inverse.apply(mapped) == text


@pytest.mark.parametrize(
    "text",
    [
        "a[1], row_ids[2], list[1], x.y[1], camelCase[2], a[1][2], $x[1], x1[2]",
        "`[1]` and ``a ` [2]``",
        "```python\nx = [1, 2]\nDocument 1\n```",
        "~~~\n[1]\n~~~",
        "  ```\n  [1]\n",
        "[5], [01], [1, 5], [1-3], [1–2], [^1], [1.5], [x, 1], [see][1], [12]",
        "Documents 1-3, Documents 1 to 3, Document 2.5, Document 1 - 2",
        "Document 10, Document 2nd, Document 2a, Documentary 1, MyDocument 1, Document 02",
        "1. first\n2. second\n(3) third, 4",
        "Source 1, page 2, 1 and 2",
        "[1",
        "",
        "The vector is [1, 2], x = [1, 2], x in [1, 2], the interval [1, 2], f([1]), a + [2]",
        "[[1, 2], [3, 4]], [[1], [2]], the matrix [[1, 2], [2, 1]]",
        "[1, 2, 3]",
        "$x_{[2]}$, $[1, 2]$, $x \\in [1, 2]$, $\\left[1, 2\\right]$, 向量 [1, 2]，区间[1, 2]",
        '{"ids": [1, 2], "n": [3]}',
        "See:\n\n    a = b[1] + (\n    [2]\n\n    [1]\n",
        "<code>[1]</code> and <pre class='a'>\n[2]</pre>",
        "page [3], Step [1], line [2]",
        "Document 1/2, Documents 1, 2-4, Document 1 to 3",
    ],
)
def test_all_else_stays(text: str) -> None:
    assert MOVED.apply(text) == text


def test_a_model_has_several_words_for_a_document() -> None:
    text = "Source 2, [doc 2], Refs. 2; passage 1\nSources: 2, 1\n**Sources:** 2 (Source: 1)"
    mapped = "Source 1, [doc 1], Refs. 1; passage 3\nSources: 1, 3\n**Sources:** 1 (Source: 3)"
    assert MOVED.of_answers.apply(text) == mapped
    assert MOVED.of_answers.apply('{"source": 2}, 3 sources: 2') == '{"source": 1}, 3 sources: 1'
    assert MOVED.apply(text) == text
    for stays in ("Number of documents: 3", "Page 2, item 3", '{"documents": 3}'):
        assert MOVED.of_answers.apply(stays) == stays
    assert CitationMap(MOVED.numbers, ("Part",)).of_answers.apply("Source 2") == "Source 2"


@pytest.mark.parametrize(
    ("text", "mapped"),
    [
        (
            "_Document 2_ and Document *2*, *Document* 2",
            "_Document 1_ and Document *1*, *Document* 1",
        ),
        (
            "Document-2 says. Document (2). Documents (2 and 1)",
            "Document-1 says. Document (1). Documents (1 and 3)",
        ),
        ("Document number 2, document Nr. 2", "Document number 1, document Nr. 1"),
        ("as Document\n2, says", "as Document\n1, says"),
        ("Laut Dok. 2 und Dokumenten 2 und 1", "Laut Dok. 1 und Dokumenten 1 und 3"),
        ("i documenti 2 e 1, dokumentu 2, 文件2", "i documenti 1 e 3, dokumentu 1, 文件1"),
    ],
)
def test_a_word_and_its_number_are_written_in_many_ways(text: str, mapped: str) -> None:
    assert MOVED.of_answers.apply(text) == mapped
    assert MOVED.of_answers.inverse.apply(mapped) == text


def test_json_in_a_fence_that_opens_the_answer_is_read_as_without() -> None:
    fenced = '```json\n{"answer": "So [1].", "sources": [2, 1], "n": [3]}\n```'
    mapped = '```json\n{"answer": "So [3].", "sources": [1, 3], "n": [3]}\n```'
    assert MOVED.of_answers.apply(fenced) == mapped
    for stays in (f"Set this:\n{fenced}", fenced.replace("json", "python")):
        assert MOVED.of_answers.apply(stays) == stays
    assert MOVED.apply(f"{fenced}\n[1]\n```\n[1]\n```") == f"{mapped}\n[3]\n```\n[1]\n```"


@pytest.mark.parametrize(
    "text",
    [
        "Document 2.pdf, 'Document 1.docx', document-2.txt, my_document 2, Document-1-2",
        "Source: 4 May 1999, and\nSource: 1 Kings 2",
        "Documents (2), Document 2 pages, document 2 copies, the document (2 pages)",
        "Here is the document\n2. second\n2 people",
    ],
)
def test_numbers_behind_a_word_that_count_or_name_something_else_stay(text: str) -> None:
    assert MOVED.of_answers.apply(text) == text


def test_labels_of_other_scripts_are_words_without_a_space_around_them() -> None:
    moved = CitationMap({"1": "2", "2": "1"}, words=("文档",))
    assert moved.apply("根据文档1和2，文档 2中提到【1】") == "根据文档2和1，文档 1中提到【2】"


PIECES = (
    *("Document ", "Documents ", "[", "]", "1", "2", "3", "12", "9", ", ", " and ", "-", ".", " "),
    *("`", "```", "\n", "~~~", "a", "x_", "$", "(", "to ", "和", "文档", "document", "[1]", "]["),
    *(
        "é",
        "Sources: ",
        "[[",
        "]]",
        "[1, 2]",
        ", p. ",
        "**",
        "［",
        "］",
        "<code>",
        "</code>",
        "    ",
    ),
    *(
        " is ",
        "vector",
        "=",
        "\n\n",
        "- ",
        "\t",
        "\\in ",
        "doc",
        '"source": ',
        ":",
        "/",
        "ee ",
        "<",
    ),
    *("Document 2, 3", "page ", "Ada. ", " (", "_", "*", "Document-", ".pdf", " pages", "Source: "),
    *("```json\n", "Documents (", "dokumentu ", "Document\n", "no. "),
)
texts = st.lists(st.sampled_from(PIECES), max_size=40).map("".join)


@st.composite
def moves(draw: st.DrawFn) -> CitationMap:
    num, first = draw(st.integers(2, 14)), draw(st.integers(0, 1))
    numbers = [str(n) for n in range(first, first + num)]
    new = draw(st.permutations(numbers))
    words = draw(st.sampled_from([(), ("Document",), ("Document", "文档"), ("文档",)]))
    move = CitationMap(dict(zip(numbers, new, strict=True)), words)
    return move.of_answers if draw(st.booleans()) else move


@given(texts, moves())
def test_the_inverse_restores_every_text(text: str, move: CitationMap) -> None:
    assert move.inverse.apply(move.apply(text)) == text


@given(texts, moves(), st.randoms())
def test_the_pieces_of_a_text_make_no_difference(
    text: str, move: CitationMap, rng: random.Random
) -> None:
    scanner, edits, end, released = CitationScanner(move), [], 0, 0
    while end < len(text):
        piece = text[end : end + rng.randint(1, 6)]
        end += len(piece)
        edits += scanner.feed(piece)
        assert released <= scanner.released <= end
        released = scanner.released
    edits += scanner.finish()
    assert scanner.released == len(text)
    assert replaced(text, edits) == move.apply(text)


@given(texts, moves())
def test_only_digits_are_held_back(text: str, move: CitationMap) -> None:
    scanner = CitationScanner(move)
    for end, character in enumerate(text, 1):
        scanner.feed(character)
        held = text[scanner.released : end]
        assert not held or held[0].isdecimal()


@given(texts, st.integers(0, 20), moves())
def test_pieces_are_replaced_each_on_its_own(text: str, size: int, move: CitationMap) -> None:
    edits = move.edits(text)
    pieces = [
        replaced(text[at : at + size], edits, start=at) for at in range(0, len(text), size or 1)
    ]
    assert not size or "".join(pieces) == move.apply(text)


def test_a_long_text_is_held_back_for_no_more_than_a_list_of_numbers() -> None:
    scanner, num = CitationScanner(MOVED), 0
    for piece in ("[" + "1, " * 100_000, "Documents 1" + " " * 100_000, "2" * 100_000):
        for at in range(0, len(piece), 1000):
            num += len(piece[at : at + 1000])
            scanner.feed(piece[at : at + 1000])
            assert num - scanner.released < 1500
