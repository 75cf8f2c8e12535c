"""Set what is resident of a sequence, where an engine tells it (RAGBoost section 4.1).

Knows sequences of documents with their lengths. Does not know events, blocks or engines.
"""

from collections.abc import Hashable, Sequence

from ragboost.index.context_index import ContextIndex


def set_resident(
    index: ContextIndex,
    documents: Sequence[Hashable],
    tokens: Sequence[int],
    *,
    num_documents: int,
    cut_tokens: int = 0,
) -> None:
    """Make the index hold exactly the leading part of a sequence, and nothing behind it.

    What is missing of that part is added. What follows it in the index goes, also of other
    sequences: a prefix cache cannot hold a sequence without its prefix. Other ways that branch off
    before stay as they are.

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
        node = index.insert(documents[:keep], tokens[:keep])
    if not index.holds(node):  # the index is too small for it
        return
    gone = list(node.children.values()) if is_cut else []
    if keep < len(documents) and documents[keep] in node.children and not is_cut:
        gone = [node.children[documents[keep]]]
    for child in gone:
        index.remove(child)
    if is_cut:
        index.cut(node, sum(node.tokens[:-1]) + cut_tokens)
