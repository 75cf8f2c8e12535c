"""The questions of the order benchmark on language."""

import gzip
import json
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs the extra engine")

from benchmarks.language.order_accuracy import conversation_rows, needle_sets, single_rows


@pytest.fixture
def data(tmp_path: Path) -> Path:
    names = ("Ada", "Ben", "Cleo", "Dora", "Emil", "Fay")
    rows = [
        {"id": name, "title": name, "text": " ".join(f"{name} has {n} goats." for n in range(40))}
        for name in names
    ]
    with gzip.open(tmp_path / "corpus.jsonl.gz", "wt") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    return tmp_path


def _count(text: str) -> int:
    return len(text.split())


def test_each_question_names_its_document_first(data: Path) -> None:
    rows = list(single_rows(needle_sets(data, count=3, count_tokens=_count, seed=7)))

    assert len({json.dumps(row) for row in rows}) == len(rows) == 12
    for row in rows:
        holds = [row["answers"][0] in document["text"] for document in row["documents"]]
        assert holds == [True, False, False, False]


def test_later_turns_ask_about_a_document_of_the_turn_before(data: Path) -> None:
    rows = list(conversation_rows(needle_sets(data, count=3, count_tokens=_count, seed=7)))

    assert Counter(row["conversation_id"] for row in rows) == {"0": 3, "1": 3, "2": 3}
    for before, row in pairwise(rows):
        asked = row["documents"][0]
        assert row["answers"][0] in asked["text"]
        if before["conversation_id"] == row["conversation_id"]:
            assert asked in before["documents"]
            assert asked is not before["documents"][0]
