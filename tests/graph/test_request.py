"""The graph of a request is read, and an invalid field is named."""

import json
from typing import Any

import pytest

from ragboost.chunk_cache.fields import read_fields
from ragboost.errors import RequestError
from ragboost.graph.request import FIELD, GraphFields

PATHS = [["Elon Musk", "founded", "SpaceX", "located in", "Texas"]]


@pytest.mark.parametrize(
    ("graph", "param"),
    [
        ([], "ragboost.graph"),
        ({}, "ragboost.graph.paths"),
        ({"paths": []}, "ragboost.graph.paths"),
        ({"paths": "x"}, "ragboost.graph.paths"),
        ({"paths": [["a", "b"]]}, "ragboost.graph.paths[0]"),
        ({"paths": [["a"], ["a", "", "c"]]}, "ragboost.graph.paths[1]"),
        ({"paths": PATHS, "triplets": PATHS}, "ragboost.graph.triplets"),
        ({"paths": PATHS, "attention": "full"}, "ragboost.graph.attention"),
        ({"paths": PATHS, "recompute_ratio": 0.5}, "ragboost.graph.recompute_ratio"),
        ({"paths": PATHS, "nodes": 2}, "ragboost.graph.nodes"),
    ],
)
def test_what_is_wrong_in_a_graph_is_named(graph: Any, param: str) -> None:
    with pytest.raises(RequestError) as caught:
        read_fields(GraphFields, json.loads(json.dumps(graph)), name=FIELD).relation_paths()
    assert caught.value.param == param
