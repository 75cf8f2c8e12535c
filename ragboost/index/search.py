"""Search the context index for the prefix that a request can reuse (RAGBoost section 4.2).

Reads the tree and changes nothing. Knows nodes. Does not know how documents are ordered.
"""

from collections.abc import Hashable, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

from ragboost.index.eviction import TokenAges
from ragboost.index.node import Node, common_length

Steps = list[tuple[int, int]]  # as in `IndexEntry.path`


class PrefixMatch(NamedTuple):
    documents: tuple[Hashable, ...]  # the prefix in cached order; all belong to the request
    cached_tokens: int  # number of its tokens that are resident
    node: Node  # the node in which the prefix ends; the root if nothing matches
    num_documents: int  # number of the node's own documents that belong to the prefix


class CachedPrefix(NamedTuple):
    """The resident part of a sequence in its given order."""

    num_documents: int  # number of leading documents with resident tokens, the last perhaps in part
    cached_tokens: int  # number of these tokens


def search(
    root: Node,
    documents: Sequence[Hashable],
    tokens: Sequence[int],
    *,
    max_visits: int,
    evict_through_tick: int,
    first_hidden_batch: int | None,
) -> PrefixMatch:
    """Find the longest cached prefix made of the request's documents; see `ContextIndex.search`.

    Ignores nodes last used at `evict_through_tick` or earlier, and nodes of `first_hidden_batch` or
    a later batch.
    """
    position = {document: i for i, document in enumerate(documents)}
    requested = position.keys()
    total = sum(tokens)
    best_node, best_count, best_tokens = root, 0, 0
    # Entries: (-matched tokens, order of discovery, node, documents with which a child begins).
    # Sequences hold distinct documents, so none of the latter occurs on the path to the node.
    frontier = [(0, 0, root, root.children.keys() & requested)]
    found = visits = 0
    while frontier and best_tokens < total:
        visits += 1
        negative, _, node, starts = heappop(frontier)
        if visits >= max_visits:  # no more alternatives: only the descent below this node
            frontier.clear()
        children = node.children
        for start in sorted(starts, key=position.__getitem__) if len(starts) > 1 else starts:
            child = children[start]
            if child.last_used <= evict_through_tick:
                continue
            if first_hidden_batch is not None and child.batch >= first_hidden_batch:
                continue
            run = child.documents
            count = 0
            for document in run:
                if document not in position:
                    break
                count += 1
            # Inlined `resident_prefix`: this runs some thirty times a search.
            length = child.tokens[0] if count == 1 else sum(child.tokens[:count])
            matched = (length if length < child.num_tokens else child.num_tokens) - negative
            if matched > best_tokens:
                best_node, best_count, best_tokens = child, count, matched
            if count == len(run) and child.children:
                after = child.children.keys() & requested
                if after:
                    found += 1
                    heappush(frontier, (-matched, found, child, after))
    if best_node.parent is None:
        return PrefixMatch((), 0, root, 0)
    count = best_node.resident_documents(best_count)
    prefix = best_node.parent.context + best_node.documents[:count]
    return PrefixMatch(prefix, best_tokens, best_node, count)


def cached_prefix(
    root: Node,
    documents: Sequence[Hashable],
    ages: TokenAges,
    first_hidden_batch: int | None,
    tokens: Sequence[int],
    path: Steps | None,
) -> CachedPrefix:
    """Measure the resident part of a sequence; see `ContextIndex.cached_prefix`."""
    node, at, cached, reached = root, 0, 0, 0
    tick = left = 0  # `left`: tokens last used at `tick` that will be retained
    while at < len(documents):
        child = node.children.get(documents[at])
        if child is None or child.last_used <= ages.evict_through_tick:
            break
        if first_hidden_batch is not None and child.batch >= first_hidden_batch:
            break
        count = common_length(child.documents, documents, at)
        if child.last_used != tick:
            tick, left = child.last_used, ages.retained_tokens(child.last_used)
        if first_hidden_batch is not None and left < child.num_tokens:
            break  # a radix tree evicts nodes whole
        resident = child.resident_prefix(count)
        if path is not None:
            share = resident / sum(child.tokens[:count])
            reached += round(share * sum(tokens[at : at + count]))
            path.append((reached, child.last_used))
        kept = min(resident, left)
        left -= kept
        cached += kept
        at += child.resident_documents(count, within=kept)
        if count < len(child.documents) or kept < resident:
            break
        node = child
    return CachedPrefix(at, cached)
