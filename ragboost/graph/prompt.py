"""A prompt as parts that depend on each other: linear texts, and trees of relation paths (DepCache
section 5)."""

from collections.abc import Sequence
from dataclasses import dataclass

from ragboost.errors import RequestError

TokenPath = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LinearNode:
    """A part whose tokens follow one another.

    Attributes:
        name: unique name in the prompt.
        tokens: token ids.
        depends_on: names of earlier parts that its tokens see, along with what those depend on.
    """

    name: str
    tokens: TokenPath
    depends_on: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TreeNode:
    """A part made of relation paths. A token sees the tokens before it on its own paths: paths
    share the tokens of a common prefix, and branches are independent.

    Attributes:
        name, depends_on: as in `LinearNode`.
        paths: token ids of each path, from the root entity on. Every segment (an entity, a
            relation) must be tokenised separately, so that equal prefixes have equal ids.
    """

    name: str
    paths: tuple[TokenPath, ...]
    depends_on: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DepPrompt:
    """Parts in an order in which each depends only on earlier ones. The last part is linear and has
    at least one token; it is always computed, for the logits of its last token.

    Raises:
        RequestError: the parts do not satisfy this.
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
                    f"nodes[{number}].name {node.name!r} is not unique",
                    param=f"nodes[{number}].name",
                )
            for other in node.depends_on:
                if other not in known:
                    raise RequestError(
                        f"nodes[{number}].depends_on names {other!r}, which is not an earlier node",
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
