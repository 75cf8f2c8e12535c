"""A prompt as parts that depend on each other: linear texts, and trees of relation paths (DepCache
section 5).

Knows token ids and names of parts. Does not know texts, tensors or models.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ragboost.errors import RequestError

Path = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LinearNode:
    """A part whose tokens follow one another.

    Attributes:
        name: unique in the prompt.
        tokens: ids.
        depends_on: names of earlier parts that its tokens see; what those depend on, they see too.
    """

    name: str
    tokens: Path
    depends_on: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TreeNode:
    """A part made of relation paths. A token sees the tokens before it on its own paths, so that
    paths with a common beginning share its tokens and what branches off is independent.

    Attributes:
        name, depends_on: as in `LinearNode`.
        paths: ids of each path, from the root entity on; every segment (an entity, a relation) is
            tokenised by itself, or equal beginnings would not be equal ids.
    """

    name: str
    paths: tuple[Path, ...]
    depends_on: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DepPrompt:
    """Parts in an order in which each depends on earlier ones only. The last one is linear, has a
    token, and is always computed: its last token's logits are wanted.

    Raises:
        RequestError: the parts are none of this.
    """

    nodes: tuple[LinearNode | TreeNode, ...]

    def __post_init__(self) -> None:
        last = self.nodes[-1] if self.nodes else None
        if not isinstance(last, LinearNode) or not last.tokens:
            raise RequestError("the last node must be a LinearNode with at least one token")
        known: set[str] = set()
        for number, node in enumerate(self.nodes):
            if node.name in known:
                raise RequestError(
                    f"nodes[{number}].name {node.name!r} is taken", param=f"nodes[{number}].name"
                )
            for other in node.depends_on:
                if other not in known:
                    raise RequestError(
                        f"nodes[{number}].depends_on names {other!r}, which is no earlier node",
                        param=f"nodes[{number}].depends_on",
                    )
            known.add(node.name)

    @classmethod
    def of(
        cls, system: Sequence[int], paths: Sequence[Sequence[int]], task: Sequence[int]
    ) -> "DepPrompt":
        """Return the usual prompt: the graph depends on the system text, the task on both."""
        return cls(
            (
                LinearNode("system", tuple(system)),
                TreeNode("context", tuple(map(tuple, paths)), ("system",)),
                LinearNode("task", tuple(task), ("system", "context")),
            )
        )
