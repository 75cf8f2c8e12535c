"""A node of the context index: a run of documents below a prefix (RAGBoost section 4.1).

Knows its place in the tree. Does not know tokenizers, caches or who uses it.
"""

from collections.abc import Hashable, Sequence
from typing import Optional


class Node:
    """A run of documents that extends its parent's context.

    The paper's four attributes are `context`, `search_path`, `num_tokens` and `is_multi_turn`.

    Attributes:
        documents: the documents that this node adds to its parent's context.
        tokens: length in tokens of each of `documents`.
        parent: None for the root.
        children: child nodes by their first document; siblings never share it. Changed by `attach`
            and `detach` only.
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
        epoch: of `Pressure`, when it was sent, or sent anew because it was about to go; 0: told by
            an engine.
    """

    __slots__ = (
        "_by_slot",
        "children",
        "confirmed_tokens",
        "documents",
        "epoch",
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
        epoch: int = 0,
    ) -> None:
        self.documents = documents
        self.tokens = tokens
        self.parent = parent
        self.slot = slot
        self.serial = serial
        self.last_used = last_used
        self.epoch = epoch
        self.children: dict[Hashable, Node] = {}
        self._by_slot: dict[int, Node] | None = None  # None: never had a child
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
        """The nodes from just below the root down to this one; none if it left the tree."""
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
        """Resident tokens from the root to the end of this node.

        What was generated behind a node above is not before this one.
        """
        above = sum(node.num_tokens - node.generated_tokens for node in self.ancestors[:-1])
        return above + self.num_tokens

    def resident_prefix(self, num_documents: int) -> int:
        """Resident tokens of the first `num_documents` documents of this node."""
        return min(sum(self.tokens[:num_documents]), self.num_tokens)

    def resident_documents(self, num_documents: int, *, within: int | None = None) -> int:
        """How many of the first `num_documents` documents have resident tokens, or tokens among
        the first `within`."""
        num_tokens = self.num_tokens if within is None else within
        while num_documents and sum(self.tokens[: num_documents - 1]) >= num_tokens:
            num_documents -= 1
        return num_documents

    def child_at(self, slot: int) -> Optional["Node"]:
        """The child at a position; None if it is gone."""
        return self._by_slot.get(slot) if self._by_slot else None

    def attach(self, child: "Node") -> None:
        """Make `child` a child, in its slot; it takes the place of one that begins alike."""
        if self._by_slot is None:
            self._by_slot = {}
        self.children[child.documents[0]] = self._by_slot[child.slot] = child
        if child.slot >= self.next_slot:
            self.next_slot = child.slot + 1

    def detach(self) -> None:
        """Leave the parent."""
        parent = self.parent
        assert parent is not None, "nothing to leave"
        assert parent._by_slot is not None, "a parent without children"
        del parent.children[self.documents[0]], parent._by_slot[self.slot]
        self.parent = None


def common_length(run: tuple[Hashable, ...], documents: Sequence[Hashable], at: int) -> int:
    """Documents that `run` and `documents[at:]` have in common from their starts."""
    count = 1
    limit = min(len(run), len(documents) - at)
    while count < limit and run[count] == documents[at + count]:
        count += 1
    return count
