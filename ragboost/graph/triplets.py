"""Triplets and the relation paths that they form, and how paths are written for a model."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ragboost.errors import RequestError


class Triplet(NamedTuple):
    """An edge: `head` has `relation` to `tail`."""

    head: str
    relation: str
    tail: str


@dataclass(frozen=True, slots=True)
class RelationPath:
    """Entities joined by relations, such as `("Alice", "likes", "Titanic", "is a", "tragedy")`."""

    parts: tuple[str, ...]  # entity, relation, entity, ...: an odd number of texts

    @property
    def root(self) -> str:
        return self.parts[0]


def as_triplet(value: object, *, where: str) -> Triplet:
    """Return three texts as a triplet, without surrounding spaces; `where` names the value."""
    if not isinstance(value, list | tuple) or len(value) != 3:
        raise RequestError(f"{where} must be [head, relation, tail], got {value!r}", param=where)
    for part in value:
        if not isinstance(part, str) or not part.strip():
            raise RequestError(f"{where} holds {part!r}, which is no text", param=where)
    head, relation, tail = (part.strip() for part in value)
    return Triplet(head, relation, tail)


def path_segments(path: RelationPath) -> list[str]:
    """Return the texts of a path's entities and relations. Tokenise each by itself: paths with a
    common beginning then have equal leading tokens, which whole lines need not have."""
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
    return "\n".join("".join(path_segments(path)) for path in paths)
