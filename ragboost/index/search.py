"""Search the context index for the prefix that a request can reuse (RAGBoost section 4.2).

Reads the tree and changes nothing. Knows nodes. Does not know eviction or orders.
"""

from collections.abc import Hashable, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

from ragboost.index.node import Node, common_length
from ragboost.index.pressure import Ages


class PrefixMatch(NamedTuple):
    """The cached prefix that a request can reuse.

    Attributes:
        documents: the prefix, in cached order; all belong to the request.
        cached_tokens: how many of its tokens are resident.
        node: where the prefix ends; the root if nothing matches.
        num_documents: how many of the node's own documents belong to the prefix.
    """

    documents: tuple[Hashable, ...]
    cached_tokens: int
    node: Node
    num_documents: int


def search(
    root: Node,
    documents: Sequence[Hashable],
    tokens: Sequence[int],
    *,
    max_visits: int,
    gone: int,
    blind_from: int | None,
) -> PrefixMatch:
    """See `ContextIndex.search`.

    Nodes last used at tick `gone` or before do not count, nor those of epoch `blind_from` on.
    """
    position = {document: i for i, document in enumerate(documents)}
    wanted = position.keys()
    total = sum(tokens)
    best_node, best_count, best_tokens = root, 0, 0
    # Entries: (-matched tokens, order of discovery, node, documents that go on from it). Sequences
    # hold distinct documents, so those that go on from a node are not among those before it.
    frontier = [(0, 0, root, root.children.keys() & wanted)]
    found = visits = 0
    while frontier and visits < max_visits and best_tokens < total:
        visits += 1
        negative, _, node, starts = heappop(frontier)
        children = node.children
        for start in sorted(starts, key=position.__getitem__) if len(starts) > 1 else starts:
            child = children[start]
            if child.last_used <= gone:
                continue
            if blind_from is not None and child.epoch >= blind_from:
                continue
            run = child.documents
            count = 0
            for document in run:
                if document not in position:
                    break
                count += 1
            # `resident_prefix`, written out: this line runs some thirty times a search.
            length = child.tokens[0] if count == 1 else sum(child.tokens[:count])
            matched = (length if length < child.num_tokens else child.num_tokens) - negative
            if matched > best_tokens:
                best_node, best_count, best_tokens = child, count, matched
            if count == len(run) and child.children:
                after = child.children.keys() & wanted
                if after:
                    found += 1
                    heappush(frontier, (-matched, found, child, after))
    return _match(best_node, best_count, best_tokens)


def cached_prefix(
    root: Node, documents: Sequence[Hashable], *, ages: Ages, blind_from: int | None
) -> tuple[int, int]:
    """See `ContextIndex.cached_prefix`; `ages` say what is about to be evicted."""
    node, at, cached = root, 0, 0
    tick = left = 0  # of the oldest tick on the way, tokens that stay
    while at < len(documents):
        child = node.children.get(documents[at])
        if child is None or child.last_used <= ages.gone:
            break
        if blind_from is not None and child.epoch >= blind_from:
            break
        count = common_length(child.documents, documents, at)
        if child.last_used != tick:
            tick, left = child.last_used, ages.kept(child.last_used)
        resident = child.resident_prefix(count)
        kept = min(resident, left)
        if blind_from is not None and left < child.num_tokens:
            break  # evicted whole
        left -= kept
        cached += kept
        at += child.resident_documents(count, within=kept)
        if count < len(child.documents) or kept < resident:
            break
        node = child
    return at, cached


def _match(node: Node, count: int, cached_tokens: int) -> PrefixMatch:
    if node.parent is None:
        return PrefixMatch((), 0, node, 0)
    count = node.resident_documents(count)
    return PrefixMatch(
        node.parent.context + node.documents[:count],
        cached_tokens,
        node,
        count,
    )
