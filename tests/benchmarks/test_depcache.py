"""The benchmark of dependency attention counts what it says, on a small graph."""

import argparse
import random

import pytest

from benchmarks.graph.depcache import WORKLOADS, make_graph, make_queries, measure


def arguments(**changed: object) -> argparse.Namespace:
    values = {
        "workload": "zipf",
        "entities": 2,
        "paths": 4,
        "roots": 3,
        "queries": 2,
        "warm": 2,
        "window": 2,
        "new_tokens": 2,
        "capacity_tokens": 400,
        "host_tokens": 0,
        "replacement": "lacr",
        "positions": "depth",
        "seed": 0,
    }
    return argparse.Namespace(**{**values, **changed})


@pytest.mark.parametrize("workload", WORKLOADS)
def test_queries_name_different_entities(workload: str) -> None:
    queries = make_queries(random.Random(0), workload, count=20, roots=40, entities=10)

    assert all(len(set(query)) == 10 for query in queries)


def test_subgraphs_have_the_paths_asked_for_and_one_root() -> None:
    graph = make_graph(random.Random(0), roots=3, paths=30, vocabulary=1000)

    assert [len(paths) for paths in graph] == [30] * 3
    assert all(len({path[:3] for path in paths}) == 1 for paths in graph)


def test_every_way_is_measured_on_the_same_queries() -> None:
    result = measure(arguments())

    names = ("self_attention", "dependency", "dependency_reuse", "subgraphs_reuse")
    plain, tree, reuse, apart = (result[name] for name in names)
    assert plain["prompt_tokens"] == 64 + 32 + 2 * 4 * 13
    assert tree["prompt_tokens"] == reuse["prompt_tokens"] < plain["prompt_tokens"]
    assert tree["attention_pairs"] < plain["attention_pairs"]
    assert reuse["attention_pairs"] < tree["attention_pairs"]
    assert plain["reuse_rate"] == tree["reuse_rate"] == 0 < reuse["reuse_rate"]
    assert apart["prompt_tokens"] == plain["prompt_tokens"]
    assert apart["reuse_rate"] > 0
