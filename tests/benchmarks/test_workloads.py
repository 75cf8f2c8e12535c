"""Workloads are what their descriptions say, and data folders are read whole."""

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from benchmarks.datasets.retrieval import load_data
from benchmarks.datasets.workloads import GENERATORS, generate, hit_rates
from ragboost.errors import RequestError


def write_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


@pytest.mark.parametrize("name", sorted(GENERATORS))
def test_generated_requests_have_k_distinct_documents_of_known_length(name: str) -> None:
    workload = generate(name, 200, k=15, seed=3)

    assert len(workload.contexts) == 200
    assert all(len(context) == len(set(context)) == 15 for context in workload.contexts)
    assert set(workload.tokens) >= {d for context in workload.contexts for d in context}
    assert all(200 <= tokens <= 1200 for tokens in workload.tokens.values())


@pytest.mark.parametrize("name", sorted(GENERATORS))
def test_a_seed_names_one_workload(name: str) -> None:
    assert generate(name, 50, seed=1) == generate(name, 50, seed=1)
    assert generate(name, 50, seed=1).contexts != generate(name, 50, seed=2).contexts


def test_zipf_draws_the_most_popular_document_in_most_requests() -> None:
    contexts = generate("zipf", 1000, seed=1).contexts
    counts = Counter(document for context in contexts for document in context)

    assert 800 < counts.most_common(1)[0][1] < 900  # the reference file has 84.6 %


def test_neardup_requests_of_one_base_share_twelve_documents() -> None:
    sets = [set(context) for context in generate("neardup", 300, seed=1).contexts]
    overlaps = [max(len(a & b) for b in sets if b is not a) for a in sets]

    assert sum(overlap >= 9 for overlap in overlaps) > 200


def test_no_requests_are_a_workload() -> None:
    assert [generate(name, 0).contexts for name in sorted(GENERATORS)] == [[], [], []]


def test_impossible_workloads_are_refused() -> None:
    with pytest.raises(RequestError, match="one of zipf, topics, neardup, got 'flat'"):
        generate("flat", 10)
    with pytest.raises(RequestError, match="k must be from 3 to 50, got 51"):
        generate("zipf", 10, k=51)


def test_hit_rates_are_keyed_by_capacity() -> None:
    assert hit_rates([["a"], ["a"]], {"a": 60_000}) == {
        "50000": 0.0,
        "100000": 0.5,
        "400000": 0.5,
        "unbounded": 0.5,
    }


def test_folder_of_retrieval_runs_is_read(tmp_path: Path) -> None:
    write_lines(
        tmp_path / "corpus.jsonl.gz",
        [{"id": name, "text": "word" * size} for name, size in (("a", 5), ("b", 7), ("c", 1))],
    )
    write_lines(
        tmp_path / "queries.jsonl.gz",
        [
            {"id": "t2", "question": "and then?", "conversation_id": "x", "turn": 2},
            {"id": "t1", "question": "who?", "conversation_id": "x", "turn": 1},
        ],
    )
    write_lines(
        tmp_path / "retrieved_bm25.jsonl.gz",
        [{"id": "t2", "doc_ids": ["b", "a", "c"]}, {"id": "t1", "doc_ids": ["a"]}],
    )

    workload = load_data(tmp_path, retriever="bm25", k=2)

    assert workload.contexts == [["b", "a"], ["a"]]
    assert workload.tokens == {"a": 5, "b": 7}
    assert workload.questions == ("and then?", "who?")
    assert workload.conversations == ((1, 0),)
    with pytest.raises(RequestError, match=r"no retrieved_dense.jsonl\*; it has corpus.jsonl.gz"):
        load_data(tmp_path)


def test_folder_of_synthetic_workloads_is_read(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "document_tokens.json.gz", "wt") as file:
        json.dump({"1": 300, "2": 200}, file)
    write_lines(tmp_path / "zipf_1.jsonl.gz", [{"id": "z0", "doc_ids": ["2", "1"]}])

    workload = load_data(tmp_path, workload="zipf")

    assert (workload.contexts, workload.tokens) == ([["2", "1"]], {"1": 300, "2": 200})
    with pytest.raises(RequestError, match="choose one of zipf, topics, neardup"):
        load_data(tmp_path)
