"""Write relation paths for a model: as segments, each tokenised by itself, or as lines of text."""

from collections.abc import Sequence

from ragboost.errors import RequestError
from ragboost.graph.triplets import RelationPath


def path_segments(path: RelationPath) -> list[str]:
    """Return the texts of a path's entities and relations; together they are `path_text`.

    Equal beginnings of paths are equal segments, which tokens of the whole line need not be.
    """
    if not path.parts or len(path.parts) % 2 == 0:
        raise RequestError(
            f"a path must be entity, relation, entity, ...: an odd number of texts, got "
            f"{list(path.parts)!r}",
            param="paths",
        )
    segments = [path.parts[0]]
    for relation, entity in zip(path.parts[1::2], path.parts[2::2], strict=True):
        segments += [f" -{relation}->", f" {entity}"]
    return segments


def path_text(paths: Sequence[RelationPath]) -> str:
    """Return paths written out one per line, for a model with ordinary attention."""
    return "\n".join("".join(path_segments(path)) for path in paths)
