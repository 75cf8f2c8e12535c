"""Record in the context index what a request sends, and tell what of it was cached before.

Knows sequences of documents with their lengths. Does not know texts, sessions or hints.
"""

from collections.abc import Hashable, Sequence

from ragboost.context import IndexEntry
from ragboost.index.context_index import ContextIndex
from ragboost.index.node import Node


def record_front(
    index: ContextIndex, documents: Sequence[Hashable], tokens: Sequence[int]
) -> IndexEntry:
    """Record documents at the front of a payload, in prompt order."""
    num_cached, cached_tokens = index.cached_prefix(documents, tokens)
    if index.pressure is not None and not index.pressure.takes(sum(tokens) - cached_tokens):
        num_cached, cached_tokens = index.cached_prefix(documents, tokens)
    path = _cached_path(index, documents)
    node = index.insert(documents, tokens)
    _renew(index, node, num_cached)
    return IndexEntry(
        node.search_path,
        cached_tokens,
        documents=tuple(documents),
        tokens=tuple(tokens),
        num_cached=num_cached,
        path=path,
        tick=index.tick,
    )


def record_turn(
    index: ContextIndex,
    front: Sequence[Hashable],
    tokens: Sequence[int],
    *,
    history_tokens: int,
    turn_tokens: int,
) -> IndexEntry:
    """Lengthen a conversation's node by a later turn (paper section 4.1, multi-turn flag).

    The turn's own documents are no child of the node: questions and answers stand between, so no
    other request could reuse them.

    Args:
        index: the context index.
        front: the documents at the front of the conversation, in prompt order.
        tokens: their lengths.
        history_tokens: length of the earlier turns behind them.
        turn_tokens: length of the new turn.
    """
    if not front:
        return IndexEntry((), 0)
    _, cached_tokens = index.cached_prefix(front, tokens)
    node = index.insert(front, tokens, multi_turn=True)
    # What was evicted is computed again, so that afterwards the whole conversation is resident.
    cached_history = min(node.generated_tokens, history_tokens)
    index.extend(node, history_tokens - cached_history + turn_tokens)
    return IndexEntry(node.search_path, cached_tokens + cached_history)


def _renew(index: ContextIndex, node: Node, num_documents: int) -> None:
    """What stands behind the first documents on the way to a node is computed anew."""
    if index.pressure is None:
        return
    for step in reversed(node.ancestors):
        if len(step.context) <= num_documents:
            return
        step.epoch = index.pressure.epoch


def _cached_path(index: ContextIndex, documents: Sequence[Hashable]) -> tuple[tuple[int, int], ...]:
    path: list[tuple[int, int]] = []
    node, at, reached = index.root, 0, 0
    while at < len(documents):
        child = node.children.get(documents[at])
        if child is None:
            break
        pairs = zip(child.documents, documents[at:], strict=False)
        count = next((i for i, (a, b) in enumerate(pairs) if a != b), len(child.documents))
        count = min(count, len(documents) - at)
        reached += child.resident_prefix(count)
        path.append((reached, child.last_used))
        if count < len(child.documents):
            break
        node, at = child, at + count
    return tuple(path)
