"""Follow a search path of the context index, as the paper does (RAGBoost section 4.2)."""

from collections.abc import Sequence

from ragboost.errors import ContextIndexError
from ragboost.index import ContextIndex, Node


def traverse(index: ContextIndex, search_path: Sequence[int]) -> Node:
    """Follow child positions from the root and touch the node."""
    node = index.root
    for depth, slot in enumerate(search_path):
        children = {child.slot: child for child in node.children.values()}
        if slot not in children:
            raise ContextIndexError(f"search path {search_path} ends after {depth} steps")
        node = children[slot]
    index.touch(node)
    return node
