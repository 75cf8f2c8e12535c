"""Read the graph in the `ragboost` object of a request.

    {"graph": {"paths": [["Elon Musk", "founded", "SpaceX", "located in", "Texas"], ...]}}

Knows JSON shapes. Does not know engines. An invalid field raises `RequestError`, which names it.
"""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from ragboost.chunk_cache.fields import Fields
from ragboost.graph.triplets import RelationPath

FIELD = "ragboost.graph"
MAX_PATHS = 20_000


def _check_path(path: list[str]) -> list[str]:
    if len(path) % 2 == 0 or not all(part.strip() for part in path):
        raise ValueError("must be [entity, relation, entity, ...], an odd number of texts")
    return [part.strip() for part in path]


class GraphFields(Fields):
    """Relation paths, and how they are attended to."""

    paths: list[Annotated[list[str], AfterValidator(_check_path)]] = Field(
        min_length=1, max_length=MAX_PATHS, description="Each [entity, relation, entity, ...]."
    )
    attention: Literal["auto", "dependency", "subgraphs", "self"] = "auto"

    def relation_paths(self) -> list[RelationPath]:
        return [RelationPath(tuple(path)) for path in self.paths]
