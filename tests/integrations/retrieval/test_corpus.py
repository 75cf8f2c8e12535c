"""A corpus is read whole, or the message names file and line."""

import gzip
import json
from pathlib import Path

import pytest

from ragboost.errors import RequestError
from ragboost.integrations.retrieval import Corpus
from ragboost.types import Document


def test_documents_come_in_file_order_and_are_found_by_id(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_text(
        '{"id": "a", "title": "T", "text": "one"}\n\n'
        '{"id": 1, "text": "two"}\n{"id": true, "text": "three"}\n{"text": "no id"}\n'
        '{"id": "1", "text": "four"}',
        encoding="utf-8",
    )

    corpus = Corpus.read(path)

    assert [document.text for document in corpus] == ["one", "two", "three", "no id", "four"]
    assert corpus.find("a") == Document("one", id="a", title="T")
    assert [found.text for i in (1, True, "1", 1.0) if (found := corpus.find(i))] == [
        "two",
        "three",
        "four",
        "two",
    ]
    assert corpus.find("missing") is None
    assert corpus.find(None) is None


def test_gzipped_corpus_is_read(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl.gz"
    path.write_bytes(gzip.compress(json.dumps({"id": 0, "text": "x"}).encode()))

    assert len(Corpus.read(path)) == 1


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"id": "a", "text": "again"}', "id 'a' is used on line 1 already"),
        (b'{"id": "b", "text": " "}', "text must be a non-empty string"),
        (b'{"id": "b"}', 'text: is missing, and so are content and page_content; got ["id"]'),
        (b'{"id": ["b"], "text": "x"}', "id must be a JSON scalar"),
        (b'{"id": "b", "text": "x", "score": NaN}', "score must be a finite number"),
        (b'{"id": "b", "text": "\xff"}', "not UTF-8 at byte 22"),
        (b'{"id": "b", "text": "x"', "not JSON"),
        (b"[" * 100_000, "nested too deeply"),
        (b"[1]", "must be a string or an object"),
    ],
)
def test_bad_line_is_named_with_file_and_line(tmp_path: Path, line: bytes, message: str) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(b'{"id": "a", "text": "first"}\n\n' + line + b"\n")

    with pytest.raises(RequestError, match=r"corpus\.jsonl:3") as caught:
        Corpus.read(path)

    assert message in str(caught.value)


def test_missing_file_and_broken_gzip_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"cannot read .*: No such file"):
        Corpus.read(tmp_path / "none.jsonl")
    broken = tmp_path / "broken.jsonl.gz"
    broken.write_bytes(gzip.compress(b'{"text": "x"}' * 100)[:-12])
    with pytest.raises(RequestError, match="not a complete gzip file"):
        Corpus.read(broken)


def test_equal_ids_in_memory_are_refused() -> None:
    with pytest.raises(RequestError, match="documents 0 and 1 of the corpus have the same id 7"):
        Corpus([Document("a", id=7), Document("b", id=7)])
