"""Compare every derived figure of a context index, and of a directory, with its tree."""

from collections.abc import Set

from ragboost.errors import ContextIndexError
from ragboost.index import Node, PrefixDirectory
from ragboost.index.context_tree import ContextTree
from ragboost.index.eviction import TokenAges


def check_index(index: ContextTree) -> None:
    """Compare every derived figure with the tree."""
    num_nodes = num_tokens = 0
    for node in index:
        _check_node(node)
        num_nodes += 1
        num_tokens += node.num_tokens
    if (num_nodes, num_tokens) != (index.num_nodes, index.num_tokens):
        raise ContextIndexError(
            f"counted {num_nodes} nodes and {num_tokens} tokens, "
            f"recorded {index.num_nodes} and {index.num_tokens}"
        )
    if num_nodes > index.max_nodes:
        raise ContextIndexError(f"{num_nodes} nodes exceed max_nodes={index.max_nodes}")
    if index.capacity_tokens is not None and num_tokens > index.capacity_tokens:
        raise ContextIndexError(
            f"{num_tokens} tokens exceed capacity_tokens={index.capacity_tokens}"
        )
    _check_ages(index._ages, {node.last_used for node in index}, num_tokens=num_tokens)


def _check_node(node: Node) -> None:
    whole = sum(node.tokens)
    parent, children = node.parent, node.children
    invariants = {
        "has documents": len(node.documents) > 0,
        "has a length per document": len(node.documents) == len(node.tokens),
        "has resident tokens": 0 < node.num_tokens <= whole + node.generated_tokens,
        "is whole unless a leaf": node.is_leaf or node.num_tokens >= whole,
        "is whole before generated tokens": node.generated_tokens == 0
        or node.num_tokens == whole + node.generated_tokens,
        "is its parent's child": parent is not None
        and parent.children.get(node.documents[0]) is node,
        "is in a slot that was given": parent is None or node.slot < parent.next_slot,
        "has children in distinct slots": len({c.slot for c in children.values()}) == len(children),
        "is not newer than its parent": parent is None
        or parent.parent is None
        or node.last_used <= parent.last_used,
        "is queued if a leaf": node.is_queued or not node.is_leaf,
    }
    for invariant, holds in invariants.items():
        if not holds:
            raise ContextIndexError(f"{node!r}: invariant violated: {invariant}")


def _check_ages(ages: TokenAges, ticks: Set[int], *, num_tokens: int) -> None:
    """Compare the counts with the nodes' ticks and total tokens."""
    ordered, total = list(ages._tokens), sum(ages._tokens.values())
    evicted = sum(n for tick, n in ages._tokens.items() if tick <= ages.evict_through_tick)
    if (set(ordered), total, evicted) != (ticks, num_tokens, ages._num_evicted):
        raise ContextIndexError(
            f"counted {total} tokens at {len(ordered)} ticks, {evicted} of them to evict; "
            f"the nodes hold {num_tokens} at {len(ticks)}, recorded {ages._num_evicted}"
        )
    if ordered != sorted(ordered):
        raise ContextIndexError(f"ticks are out of order: {ordered[:10]}")


def check_directory(directory: PrefixDirectory) -> None:
    """Compare each branch with its parent."""
    stack = [directory.root]
    while stack:
        branch = stack.pop()
        for first, child in branch.children.items():
            is_held = branch is directory.root or not directory._live(child) & ~directory._live(
                branch
            )
            if child.documents[:1] != (first,) or child.parent is not branch or not is_held:
                raise ContextIndexError(f"the branch of {child.documents!r} is misplaced")
            if not child.members:
                raise ContextIndexError(f"no index holds the branch of {child.documents!r}")
            stack.append(child)
