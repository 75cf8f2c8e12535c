"""The hot prefixes of a context index, cut to what a page can show."""

import heapq
from typing import Any

from ragboost.index.context_index import ContextIndex
from ragboost.index.node import Node
from ragboost.proxy.observability.recent_requests import RecentRequests

_MAX_CHILDREN = 8
_MAX_DEPTH = 4
_MAX_DOCUMENTS = 12


def hot_prefixes(index: ContextIndex, recent: RecentRequests) -> list[dict[str, Any]]:
    """The most recently used nodes below the root and below each of them, to a depth of four.

    Args:
        index: is read only.
        recent: knows what documents are called.

    Returns:
        JSON values: `documents`, `num_documents`, `num_tokens`, `age` (insertions and uses since
        the last use), `num_children`, `children`.
    """
    return _children(index.root, index.tick, recent, depth=1)


def _children(node: Node, tick: int, recent: RecentRequests, *, depth: int) -> list[dict[str, Any]]:
    if depth > _MAX_DEPTH:
        return []
    latest = heapq.nlargest(_MAX_CHILDREN, node.children.values(), key=lambda n: n.last_used)
    return [
        {
            "documents": [recent.label(key) for key in child.documents[:_MAX_DOCUMENTS]],
            "num_documents": len(child.documents),
            "num_tokens": child.num_tokens,
            "age": tick - child.last_used,
            "num_children": len(child.children),
            "children": _children(child, tick, recent, depth=depth + 1),
        }
        for child in latest
    ]
