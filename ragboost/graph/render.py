"""Write relation paths for a model: as segments that are tokenised separately, or as text lines."""

from collections.abc import Sequence

from ragboost.errors import RequestError
from ragboost.graph.triplets import RelationPath


def path_segments(path: RelationPath) -> list[str]:
    """Return the texts of a path's entities and relations; joined, they are `path_text`.

    Paths with a common beginning have equal leading segments; the tokens of whole lines may differ.

    Raises:
        RequestError: an even number of parts.
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
