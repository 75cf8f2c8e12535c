"""Check what a context index is given, and compare what it keeps up to date with its tree.

Reads everything and changes nothing.
"""

from collections.abc import Hashable, Iterable, Sequence

from ragboost.errors import ContextIndexError
from ragboost.index.node import Node


def check_sequence(documents: Sequence[Hashable], tokens: Sequence[int]) -> None:
    """Check what is to be inserted.

    Raises:
        ContextIndexError: a length below 1, a document twice, or not one length per document.
    """
    if len(documents) != len(tokens) or min(tokens, default=1) < 1:
        raise ContextIndexError(
            f"{len(documents)} documents need as many lengths of at least 1, got {tokens!r}"
        )
    if len(set(documents)) < len(documents):
        raise ContextIndexError(f"a sequence needs distinct documents, got {documents!r}")


def check_node(node: Node) -> None:
    """Check what holds for every node but the root.

    Raises:
        ContextIndexError: an invariant does not hold; the message names node and invariant.
    """
    whole = sum(node.tokens)
    parent, children = node.parent, node.children
    for fact, holds in {
        "has documents": len(node.documents) > 0,
        "has a length per document": len(node.documents) == len(node.tokens),
        "has resident tokens": 0 < node.num_tokens <= whole + node.generated_tokens,
        "is whole unless a leaf": node.is_leaf or node.num_tokens >= whole,
        "is whole before generated tokens": node.generated_tokens == 0
        or node.num_tokens == whole + node.generated_tokens,
        "is its parent's child": parent is not None
        and parent.children.get(node.documents[0]) is node,
        "is in its slot": parent is not None and parent.child_at(node.slot) is node,
        "has children in slots of their own": len({c.slot for c in children.values()})
        == len(children),
        "is not newer than its parent": parent is None
        or parent.parent is None
        or node.last_used <= parent.last_used,
        "is queued if a leaf": node.is_queued or not node.is_leaf,
    }.items():
        if not holds:
            raise ContextIndexError(f"{node!r}: does not hold: {fact}")


def check_totals(
    nodes: Iterable[Node],
    *,
    num_nodes: int,
    num_tokens: int,
    max_nodes: int,
    capacity_tokens: int | None,
) -> None:
    """Check the recorded totals and limits against the nodes.

    Raises:
        ContextIndexError: the message gives the numbers.
    """
    counted_nodes = counted_tokens = 0
    for node in nodes:
        counted_nodes += 1
        counted_tokens += node.num_tokens
    if (counted_nodes, counted_tokens) != (num_nodes, num_tokens):
        raise ContextIndexError(
            f"counted {counted_nodes} nodes and {counted_tokens} tokens, "
            f"recorded {num_nodes} and {num_tokens}"
        )
    if num_nodes > max_nodes:
        raise ContextIndexError(f"{num_nodes} nodes exceed {max_nodes}")
    if capacity_tokens is not None and num_tokens > capacity_tokens:
        raise ContextIndexError(f"{num_tokens} tokens exceed {capacity_tokens}")
