"""The corpus of the preprocessing benchmark is what its description says, and parts are kept."""

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.chunks.articles import DOCUMENTS, SOURCES, make_articles
from benchmarks.parts import part


def test_a_corpus_is_drawn_from_its_seed_alone() -> None:
    one, same, other = (make_articles(seed=seed, asked=3, num_articles=20) for seed in (1, 1, 2))
    assert one.documents == same.documents != other.documents
    assert one.cases == same.cases
    assert one.trace == same.trace
    assert np.array_equal(one.vectors, same.vectors)
    assert {case.task for case in one.cases} >= {"local", "anaphora", "two_hop", "compare"}
    for case in one.cases:
        first = one.documents.index(case.chunks[0])
        assert first % DOCUMENTS == 0
        assert list(case.chunks) == one.documents[first : first + DOCUMENTS]


def test_similarity_finds_the_share_of_relatives_that_is_claimed() -> None:
    articles = make_articles(seed=101, asked=1)
    shares = {}
    for top_n in (2, 10):
        near = SOURCES["similarity"](articles, top_n)
        same = [
            other // DOCUMENTS == n // DOCUMENTS for n, all_ in enumerate(near) for other in all_
        ]
        shares[top_n] = sum(same) / len(same)
    assert round(shares[2], 2) == 0.69
    assert round(shares[10], 2) == 0.35


def test_a_graph_points_at_what_stands_before() -> None:
    articles = make_articles(seed=1, asked=1, num_articles=3)
    near = SOURCES["graph"](articles, 2)
    assert near[:4] == [(), (0,), (0, 1), (1, 2)]
    assert near[DOCUMENTS] == ()


def test_a_finished_part_is_not_made_again(tmp_path: Path) -> None:
    made: list[str] = []

    def make() -> list[Any]:
        made.append("made")
        return [{"score": 0.5}]

    first = part(tmp_path / "parts", "one", make)
    again = part(tmp_path / "parts", "one", make)
    apart = part(None, "one", make)
    assert first == again == apart == [{"score": 0.5}]
    assert len(made) == 2
