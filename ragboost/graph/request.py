"""Read the graph in the `ragboost` object of a request.

    {"graph": {"paths": [["Elon Musk", "founded", "SpaceX", "located in", "Texas"], ...]}
            | {"triplets": [["Elon Musk", "founded", "SpaceX"], ...], "entities": ["Elon Musk"]}}

Knows JSON shapes. Does not know engines. An invalid field raises `RequestError`, which names it.
"""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from ragboost.chunk_cache.fields import Fields, Text
from ragboost.errors import RequestError
from ragboost.graph.retrieve import paths_of
from ragboost.graph.triplets import RelationPath, as_triplet

FIELD = "ragboost.graph"
MAX_PATHS = 20_000


@dataclass(frozen=True, slots=True)
class GraphRequest:
    paths: tuple[RelationPath, ...]
    attention: str = "auto"  # or `dependency`, `subgraphs`, `self`


def _check_path(path: list[str]) -> list[str]:
    if len(path) % 2 == 0 or not all(part.strip() for part in path):
        raise ValueError("must be [entity, relation, entity, ...], an odd number of texts")
    return [part.strip() for part in path]


class GraphFields(Fields):
    """Relation paths, or triplets that form them."""

    paths: list[Annotated[list[str], AfterValidator(_check_path)]] = Field(
        [], max_length=MAX_PATHS, description="Each [entity, relation, entity, ...]."
    )
    triplets: list[Any] = Field(
        [], max_length=MAX_PATHS, description="Each [head, relation, tail]; chained to paths."
    )
    entities: list[Text] = Field(
        [], max_length=MAX_PATHS, description="First entities of the paths that triplets form."
    )
    hops: int = Field(2, ge=1, le=8, description="Maximum relations of such a path.")
    attention: Literal["auto", "dependency", "subgraphs", "self"] = "auto"

    def request(self) -> GraphRequest:
        paths = [RelationPath(tuple(path)) for path in self.paths]
        triplets = [
            as_triplet(triplet, where=f"{FIELD}.triplets[{i}]")
            for i, triplet in enumerate(self.triplets)
        ]
        if triplets:
            paths += paths_of(triplets, entities=self.entities, hops=self.hops)
        if not 0 < len(paths) <= MAX_PATHS:
            raise RequestError(
                f"{FIELD} must give from 1 to {MAX_PATHS} paths, or triplets that form them from "
                f"its entities, got {len(paths)}",
                param=FIELD,
            )
        return GraphRequest(tuple(paths), self.attention)
