"""A node of the context index: a run of documents below a prefix (RAGBoost section 4.1).

Knows its place in the tree. Does not know tokenizers, caches or who uses it.
"""

from collections.abc import Hashable
from typing import Optional


class Node:
    """A run of documents that extends its parent's context.

    The paper's four attributes are `context`, `search_path`, `num_tokens` and `is_multi_turn`.

    Attributes:
        documents: the documents that this node adds to its parent's context.
        tokens: length in tokens of each of `documents`.
        parent: None for the root.
        children: child nodes by their first document; siblings never share it.
        slot: position in the parent's child list; given once and never reused, so that the search
            paths of other nodes stay valid when a sibling goes.
        num_tokens: resident tokens of this node, at most `sum(tokens) + generated_tokens`; fewer
            where the end has been evicted.
        generated_tokens: tokens behind the documents: questions, answers, later turns. They stand
            at the node's end, so they are evicted first.
        is_multi_turn: a conversation goes on from here.
        confirmed_tokens: how many of `num_tokens` an engine has said to hold; the rest is expected.
        last_used: tick of the last insertion or traversal through this node.
        serial: order of creation; breaks ties of `last_used`.
        is_queued: the index's eviction heap holds an entry for it.
    """

    __slots__ = (
        "children",
        "confirmed_tokens",
        "documents",
        "generated_tokens",
        "is_multi_turn",
        "is_queued",
        "last_used",
        "next_slot",
        "num_tokens",
        "parent",
        "serial",
        "slot",
        "tokens",
    )

    def __init__(
        self,
        documents: tuple[Hashable, ...] = (),
        tokens: tuple[int, ...] = (),
        *,
        parent: Optional["Node"] = None,
        slot: int = 0,
        serial: int = 0,
        last_used: int = 0,
    ) -> None:
        self.documents = documents
        self.tokens = tokens
        self.parent = parent
        self.slot = slot
        self.serial = serial
        self.last_used = last_used
        self.children: dict[Hashable, Node] = {}
        self.next_slot = 0
        self.num_tokens = sum(tokens)
        self.generated_tokens = 0
        self.confirmed_tokens = 0
        self.is_multi_turn = False
        self.is_queued = False

    def __repr__(self) -> str:
        return (
            f"Node(documents={self.documents!r}, num_tokens={self.num_tokens}, "
            f"search_path={self.search_path})"
        )

    @property
    def is_leaf(self) -> bool:
        """No other node extends this one."""
        return not self.children

    @property
    def ancestors(self) -> list["Node"]:
        """The nodes from just below the root down to this one."""
        path = []
        node = self
        while node.parent is not None:
            path.append(node)
            node = node.parent
        return path[::-1]

    @property
    def context(self) -> tuple[Hashable, ...]:
        """The documents from the root to the end of this node."""
        return tuple(document for node in self.ancestors for document in node.documents)

    @property
    def search_path(self) -> tuple[int, ...]:
        """Child positions from the root to this node."""
        return tuple(node.slot for node in self.ancestors)

    @property
    def sequence_length(self) -> int:
        """Resident tokens from the root to the end of this node."""
        return sum(node.num_tokens for node in self.ancestors)

    def resident_prefix(self, num_documents: int) -> int:
        """Resident tokens of the first `num_documents` documents of this node."""
        return min(sum(self.tokens[:num_documents]), self.num_tokens)
