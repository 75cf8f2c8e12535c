"""Select the most recently used prefixes of a context index, as many as a page can show."""

import heapq
from typing import Any

from ragboost.index.context_index import ContextIndex
from ragboost.index.node import Node
from ragboost.proxy.observability.recent_requests import RecentRequests, short_name
from ragboost.types import named_key

_MAX_CHILDREN = 8
_MAX_DEPTH = 4
_MAX_DOCUMENTS = 12


def hot_prefixes(index: ContextIndex, recent: RecentRequests) -> list[dict[str, Any]]:
    """Return the most recently used nodes below the root and each of them, four levels deep."""
    return _children(index.root, index.tick, recent, depth=1)


def _children(node: Node, tick: int, recent: RecentRequests, *, depth: int) -> list[dict[str, Any]]:
    if depth > _MAX_DEPTH:
        return []
    latest = heapq.nlargest(_MAX_CHILDREN, node.children.values(), key=lambda n: n.last_used)
    return [
        {
            "name": short_name(named_key(child.documents[-1])),
            "documents": [
                recent.label(named_key(name)) for name in child.documents[:_MAX_DOCUMENTS]
            ],
            "num_documents": len(child.documents),
            "num_tokens": child.num_tokens,
            "age": tick - child.last_used,
            "num_children": len(child.children),
            "children": _children(child, tick, recent, depth=depth + 1),
        }
        for child in latest
    ]
