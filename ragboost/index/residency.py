"""Set what is resident of a sequence, where an engine tells it (RAGBoost section 4.1).

What an engine has said is confirmed; what was inserted beside that is expected. Knows sequences of
documents with their lengths. Does not know events, blocks or engines.
"""

from collections.abc import Hashable, Sequence

from ragboost.index.context_index import ContextIndex
from ragboost.index.node import Node


def set_resident(
    index: ContextIndex,
    documents: Sequence[Hashable],
    tokens: Sequence[int],
    *,
    num_documents: int,
    cut_tokens: int = 0,
) -> None:
    """Make the index hold the leading part of a sequence, and nothing of it behind that.

    What is missing of that part is added. What the sequence has behind it goes, with everything
    that no engine has confirmed: a prefix cache cannot hold a sequence without its prefix. What it
    has confirmed of other sequences stays until they are told of their own loss, and keeps what
    stands before it: where documents end is an estimate.

    Args:
        index: the context index.
        documents: distinct documents in prompt order.
        tokens: their lengths.
        num_documents: leading documents that are resident whole.
        cut_tokens: resident tokens of the next document; none where that would be the whole one.
    """
    is_cut = num_documents < len(documents) and 0 < cut_tokens < tokens[num_documents]
    keep = num_documents + is_cut
    node = index.root
    if keep:
        node = index.insert(documents[:keep], tokens[:keep], is_use=False)
    if not index.holds(node):  # the index is too small for it
        return
    _drop_behind(index, node, documents[keep:])
    if is_cut and not _has_confirmed(node):
        for child in list(node.children.values()):
            index.remove(child)
        index.cut(node, sum(node.tokens[:-1]) + cut_tokens)
    for step in node.ancestors:
        step.confirmed_tokens = min(step.num_tokens, sum(step.tokens))


def _drop_behind(index: ContextIndex, node: Node, documents: Sequence[Hashable]) -> None:
    """Remove the way of these documents behind a node, up from its end to what others confirm."""
    way, at = [], 0
    while at < len(documents) and (child := node.children.get(documents[at])) is not None:
        run = child.documents
        if run != tuple(documents[at : at + len(run)]) and child.confirmed_tokens:
            break  # another sequence's
        way.append(child)
        node, at = child, at + len(run)
    for child in reversed(way):
        if _has_confirmed(child):
            return
        index.remove(child)


def _has_confirmed(node: Node) -> bool:
    return any(child.confirmed_tokens for child in node.children.values())


def drop_unconfirmed(index: ContextIndex, documents: Sequence[Hashable]) -> None:
    """Take the end of a sequence back as far as no engine has confirmed it.

    Stops where another sequence goes on: that one takes back the rest in its turn.

    Args:
        index: the context index.
        documents: a sequence that was inserted.
    """
    node = _end(index, documents)
    while node.is_leaf and node.parent is not None:
        parent = node.parent
        if node.confirmed_tokens >= sum(node.tokens):
            return
        if node.confirmed_tokens:
            index.cut(node, node.confirmed_tokens)
            return
        index.remove(node)
        node = parent


def drop_unused(
    index: ContextIndex, documents: Sequence[Hashable], *, num_kept: int, tick: int
) -> None:
    """Take the end of a sequence back that nothing has used since it was inserted.

    Args:
        index: the context index.
        documents: the sequence.
        num_kept: leading documents that were there before.
        tick: of the insertion.
    """
    node = _end(index, documents)
    while node.is_leaf and node.parent is not None and node.last_used == tick:
        parent = node.parent
        if len(parent.context) < num_kept:
            return
        index.remove(node)
        node = parent


def _end(index: ContextIndex, documents: Sequence[Hashable]) -> Node:
    """The deepest node whose context the sequence begins with."""
    node, at = index.root, 0
    while at < len(documents):
        child = node.children.get(documents[at])
        if child is None or child.documents != tuple(documents[at : at + len(child.documents)]):
            break
        node, at = child, at + len(child.documents)
    return node
