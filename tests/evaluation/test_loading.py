"""Questions are read; malformed records are counted and named."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from ragboost.errors import RequestError
from ragboost.evaluation.loading import load_questions


def write(path: Path, *rows: Any) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_plain_lines_name_documents_of_a_corpus(tmp_path: Path) -> None:
    corpus = write(tmp_path / "c.jsonl", {"id": "a", "text": "one"}, {"id": 2, "text": "two"})
    rows = [
        {"question": "x?", "doc_ids": [2, "a"], "answers": ["two"]},
        {"question": "y?", "doc_ids": ["b"], "answers": ["two"]},
    ]

    loaded = load_questions(write(tmp_path / "q.jsonl", *rows), corpus=corpus)

    assert [d.text for d in loaded.questions[0].documents] == ["two", "one"]
    assert 'doc_ids[0]: "b" is not in the corpus' in loaded.problems[0]


def test_malformed_lines_are_skipped_counted_and_named(tmp_path: Path) -> None:
    path = tmp_path / "q.jsonl.gz"
    good = {"question": "x?", "documents": ["a", "b"], "answers": ["a"], "id": "1"}
    bad = [{**good, "answers": []}, {**good, "documents": []}, {**good, "documents": [""]}, [1]]
    lines = [json.dumps(good), "{", *map(json.dumps, bad), "", json.dumps(good)]
    path.write_bytes(gzip.compress("\n".join(lines).encode()))

    loaded = load_questions(path)

    assert [one.id for one in loaded.questions] == ["1", "1#1"]
    assert loaded.num_rejected == 5
    assert loaded.problems[0].startswith(f"{path}:2: not JSON")
    assert "the right answer is missing" in loaded.problems[1]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "has no valid question"),
        ("{\n", "not JSON"),
        ("nothing\n", "not JSON"),
        (
            '{"a": 1}\n',
            "expected the fields question, .* and answers; .*datasets.q",
        ),
        ('{"question": "x", "documents": 3, "answers": ["a"]}\n', "must be a list"),
    ],
)
def test_a_file_without_a_valid_question_is_refused(
    tmp_path: Path, text: str, problem: str
) -> None:
    path = tmp_path / "q.jsonl"
    path.write_text(text)

    with pytest.raises(RequestError, match=problem):
        load_questions(path)


def test_an_unknown_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="cannot read"):
        load_questions(tmp_path / "q.jsonl")


def test_a_field_of_another_type_is_an_error_of_that_line(tmp_path: Path) -> None:
    row = {"question": "x?", "documents": ["a"], "answers": ["a"]}
    other = {"question": "x?", "doc_ids": 3, "answers": ["a"]}

    assert load_questions(write(tmp_path / "q.jsonl", row, other)).num_rejected == 1


def test_no_more_questions_than_the_limit_are_read(tmp_path: Path) -> None:
    row = {"question": "x?", "documents": ["a"], "answers": ["a"]}

    assert len(load_questions(write(tmp_path / "q.jsonl", row, row, row), limit=2).questions) == 2
