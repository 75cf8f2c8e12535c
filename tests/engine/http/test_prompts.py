"""Documents of the chat template are found with their titles."""

import pytest

from ragboost.engine.http.prompts import document_texts


@pytest.mark.parametrize("title", ["Title", "", None])
def test_documents_are_found_with_their_titles(title: str | None) -> None:
    documents = [{"title": title, "text": "first text"}, {"text": "second text"}]
    head = f"{title}\n" if title else ""
    text = f"S {head}first text\n\nsecond text\n\nQ"
    found = document_texts(text, [*documents, {"text": "not there"}, {"data": 3}])
    assert found == [f"{head}first text", "second text"]
