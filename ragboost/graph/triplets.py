"""The nouns of a knowledge graph: triplets, and the relation paths that they form."""

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
    """Entities joined by relations, such as `("Alice", "likes", "Titanic", "is a", "tragedy")`.

    Attributes:
        parts: entity, relation, entity, ... : an odd number of texts, at least one.
    """

    parts: tuple[str, ...]

    @property
    def root(self) -> str:
        """The first entity."""
        return self.parts[0]


def as_triplet(value: object, *, where: str) -> Triplet:
    """Return three texts as a triplet, without surrounding spaces.

    Raises:
        RequestError: not three non-empty texts; `where` names the value.
    """
    if not isinstance(value, list | tuple) or len(value) != 3:
        raise RequestError(f"{where} must be [head, relation, tail], got {value!r}", param=where)
    for part in value:
        if not isinstance(part, str) or not part.strip():
            raise RequestError(f"{where} holds {part!r}, which is no text", param=where)
    head, relation, tail = (part.strip() for part in value)
    return Triplet(head, relation, tail)
