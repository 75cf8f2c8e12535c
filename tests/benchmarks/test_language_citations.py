"""The requests of the citation benchmark, and the tokens that notes add."""

import re

import pytest

pytest.importorskip("torch", reason="needs the extra engine")

from benchmarks.language.cases import LanguageCase
from benchmarks.language.citation_requests import PLAIN, PRODUCT, WRITINGS, write_cases
from benchmarks.language.note_tokens import measure
from ragboost.types import Document

TEXTS = [f"The {name} of the house is kept at the {name} office. " * 4 for name in ("lease", "key")]
TEXTS += [f"The door code of {name} is {code}. " * 4 for name, code in (("Ada", 17), ("Ben", 28))]
CASE = LanguageCase(
    "1", "What is the door code of Ben?", ("28",), tuple(Document(text.strip()) for text in TEXTS)
)


def content(arm: str) -> str:
    (case,) = write_cases([CASE], [PLAIN, PRODUCT, arm])
    return str(case.requests[arm]["messages"][1]["content"])


def test_the_product_writes_each_document_at_another_place() -> None:
    (case,) = write_cases([CASE], [PLAIN, PRODUCT])

    assert (case.number, case.place) != (4, 4)
    assert f"Document {case.place}: {TEXTS[3].strip()}" in content(PRODUCT)
    assert f"{case.place} is {case.number}" in content(PRODUCT)
    for at, text in enumerate(TEXTS, 1):
        assert f"Document {at}: {text.strip()}" in content(PLAIN)
        assert content(PRODUCT).count(text.strip()) == 1
        assert f"Document {at}: {text.strip()}" not in content(PRODUCT)


@pytest.mark.parametrize("arm", WRITINGS)
def test_another_note_replaces_the_products(arm: str) -> None:
    written = content(arm)

    assert all(written.count(text.strip()) == 1 for text in TEXTS)
    assert written.count("Cite documents by") == ("Cite documents by" in WRITINGS[arm].note([1, 0]))
    assert written.endswith(CASE.question) != WRITINGS[arm].is_behind


def test_the_clients_numbers_move_with_their_documents() -> None:
    written = content("client's numbers")

    for at, text in enumerate(TEXTS, 1):
        assert f"Document {at}: {text.strip()}" in written


def test_no_frame_adds_more_than_eight_tokens_a_document() -> None:
    def count(text: str) -> int:
        """Words, digits and marks, as tokenizers of small vocabularies split them."""
        return len(re.findall(r"[^\W\d_]+|\S| (?=\d)", text))

    rows = measure({"pieces": count}, documents=5, requests=3)

    assert {row["layout"] for row in rows if row["pieces"] is not None} >= {
        *("<document>", "Open WebUI", "[1], blank lines", "Document 1:"),
        *("AnythingLLM", "RAGFlow", "JSON objects"),
    }
    assert all(row["pieces"] <= 8 for row in rows if row["pieces"] is not None)
