"""Record in the context index what a request sends, and tell what of it was cached before.

Knows sequences of documents with their lengths. Does not know texts, sessions or hints.
"""

from collections.abc import Hashable, Sequence
from typing import NamedTuple

from ragboost.index.context_index import ContextIndex


class Recorded(NamedTuple):
    """Where a request stands in the index.

    Attributes:
        search_path: child positions from the root (paper section 4.1).
        cached_tokens: what the cache held of it before.
    """

    search_path: tuple[int, ...]
    cached_tokens: int


def record_front(
    index: ContextIndex, documents: Sequence[Hashable], tokens: Sequence[int]
) -> Recorded:
    """Record documents at the front of a payload, in prompt order."""
    _, cached_tokens = index.cached_prefix(documents, tokens)
    return Recorded(index.insert(documents, tokens).search_path, cached_tokens)


def record_turn(
    index: ContextIndex,
    front: Sequence[Hashable],
    tokens: Sequence[int],
    *,
    history_tokens: int,
    turn_tokens: int,
) -> Recorded:
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
        return Recorded((), 0)
    _, cached_tokens = index.cached_prefix(front, tokens)
    node = index.insert(front, tokens, multi_turn=True)
    # What was evicted is computed again, so that afterwards the whole conversation is resident.
    cached_history = min(node.generated_tokens, history_tokens)
    index.extend(node, history_tokens - cached_history + turn_tokens)
    return Recorded(node.search_path, cached_tokens + cached_history)
