"""Read the graph in the `ragboost` object of a request, and write its paths for a model.

    {"graph": {"paths": [["Elon Musk", "founded", "SpaceX", "located in", "Texas"], ...]}}

Knows JSON shapes. Does not know engines. An invalid field raises `RequestError`, which names it.
"""

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from ragboost.chunk_cache.fields import Fields

RelationPath = tuple[str, ...]
"""Entities joined by relations, such as `("Alice", "likes", "Titanic")`."""
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
        return [tuple(path) for path in self.paths]


def path_segments(path: RelationPath) -> list[str]:
    """Return the texts of a path's entities and relations. Tokenise each by itself: paths with a
    common beginning then have equal leading tokens, which whole lines need not have."""
    segments = [path[0]]
    for relation, entity in zip(path[1::2], path[2::2], strict=True):
        segments += [f" -{relation}->", f" {entity}"]
    return segments


def path_text(paths: Sequence[RelationPath]) -> str:
    return "\n".join("".join(path_segments(path)) for path in paths)
