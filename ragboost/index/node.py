"""A node of the context index: a run of documents below a prefix (RAGBoost section 4.1).

Knows its place in the tree. Does not know tokenizers, caches or its users.
"""

from collections.abc import Hashable, Mapping, Sequence
from operator import eq
from typing import NamedTuple, Optional

from ragboost.errors import ContextIndexError

_NO_CHILDREN: Mapping[Hashable, "Node"] = {}
"""Of all leaves, which are most of a tree: an empty dict for each would be a tenth of it."""


class Node:
    """A run of documents that extends its parent's context.

    The paper's four attributes are `context`, `search_path`, `num_tokens` and `is_multi_turn`.
    """

    __slots__ = (
        "batch",
        "branch",
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
        batch: int = 0,
    ) -> None:
        self.documents = documents  # the documents that this node adds to its parent's context
        self.tokens = tokens  # length in tokens of each of `documents`
        self.parent = parent  # the parent node; None for the root
        # Position among the parent's children. Never reused, so that the search paths of other
        # nodes stay valid when a sibling is removed.
        self.slot = slot
        self.serial = serial  # creation number; breaks ties of `last_used`
        self.last_used = last_used  # tick of the last insertion or traversal through this node
        # Engine batch in which it was last computed, see `EvictionForecast`; 0: reported by an
        # engine.
        self.batch = batch
        # Child nodes by their first document, which siblings never share. Only `attach` and
        # `detach` change it.
        self.children: Mapping[Hashable, Node] = _NO_CHILDREN
        self.next_slot = 0
        # Where its context ends in the directory, if there is one.
        self.branch: Branch | None = None
        # Resident tokens of this node, at most `sum(tokens) + generated_tokens`; fewer after the
        # end has been evicted.
        self.num_tokens = sum(tokens)
        # Tokens behind the documents: questions, answers, later turns. They end the node, so they
        # are evicted first.
        self.generated_tokens = 0
        # Number of `num_tokens` that an engine has reported; the rest is expected.
        self.confirmed_tokens = 0
        self.is_multi_turn = False  # a conversation continues from here
        self.is_queued = False  # the index's eviction queue holds an entry for it

    def __repr__(self) -> str:
        return (
            f"Node(documents={self.documents!r}, num_tokens={self.num_tokens}, "
            f"search_path={self.search_path})"
        )

    @property
    def is_leaf(self) -> bool:
        return not self.children

    @property
    def ancestors(self) -> list["Node"]:
        """The nodes from below the root down to this one; empty if this one left the tree."""
        path = []
        node = self
        while node.parent is not None:
            path.append(node)
            node = node.parent
        return path[::-1]

    @property
    def context(self) -> tuple[Hashable, ...]:
        return tuple(document for node in self.ancestors for document in node.documents)

    @property
    def search_path(self) -> tuple[int, ...]:
        return tuple(node.slot for node in self.ancestors)

    def resident_prefix(self, num_documents: int) -> int:
        return min(sum(self.tokens[:num_documents]), self.num_tokens)

    def resident_documents(self, num_documents: int, *, within: int | None = None) -> int:
        """Count the first `num_documents` documents that begin `within` the resident tokens."""
        num_tokens = self.num_tokens if within is None else within
        while num_documents and sum(self.tokens[: num_documents - 1]) >= num_tokens:
            num_documents -= 1
        return num_documents

    def attach(self, child: "Node") -> None:
        """Add a child in its slot, replacing a child that begins with the same document."""
        if self.children is _NO_CHILDREN:
            self.children = {}
        assert isinstance(self.children, dict), "a parent has a dict of its own"
        self.children[child.documents[0]] = child
        if child.slot >= self.next_slot:
            self.next_slot = child.slot + 1

    def detach(self) -> None:
        parent = self.parent
        assert parent is not None, "the root cannot be detached"
        assert isinstance(parent.children, dict), "a parent without children"
        del parent.children[self.documents[0]]
        self.parent = None

    def unlink(self) -> list["Node"]:
        """Forget all other nodes, so that this one is freed without the garbage collector.

        Returns the children that it had.
        """
        children = list(self.children.values())
        self.parent = None
        self.children = _NO_CHILDREN
        return children


class RetiredTree(NamedTuple):
    """The nodes of a tree that was cleared, as far as they are not yet taken apart."""

    nodes: list[Node]  # with all nodes below them
    bit: int  # of its index in the directory, which still lists them
    cleared: int  # tick of the directory


def unlink_all(nodes: list[Node]) -> None:
    """Take trees apart: parents and children refer to each other."""
    while nodes:
        nodes += nodes.pop().unlink()


def common_length(run: tuple[Hashable, ...], documents: Sequence[Hashable], at: int) -> int:
    """Count the leading documents that `run` and `documents[at:]` share."""
    is_equal = list(map(eq, run, documents[at : at + len(run)]))
    return len(is_equal) if all(is_equal) else is_equal.index(False)


def check_sequence(documents: Sequence[Hashable], tokens: Sequence[int]) -> None:
    """Check that documents are distinct, and their lengths as many and at least 1."""
    if len(documents) != len(tokens) or min(tokens, default=1) < 1:
        raise ContextIndexError(
            f"{len(documents)} documents need as many lengths of at least 1, got {tokens!r}"
        )
    if len(set(documents)) < len(documents):
        raise ContextIndexError(f"a sequence needs distinct documents, got {documents!r}")


class Branch:
    """A run of documents behind its parent's, and the indexes that hold it.

    Not every bit of `members` counts: an index that was cleared later than `tick` does not hold it.
    """

    __slots__ = ("children", "documents", "members", "parent", "tick")

    def __init__(
        self,
        documents: tuple[Hashable, ...],
        *,
        parent: "Branch | None",
        members: int = 0,
        tick: int = 0,
    ) -> None:
        self.documents = documents
        self.parent = parent  # None for the root
        self.members = members  # a bit per index
        self.tick = tick  # of the latest change of `members`
        self.children: dict[Hashable, Branch] = {}  # by their first document

    def split(self, count: int) -> "Branch":
        """Move the first `count` documents into a new parent, and return it.

        This branch keeps its end, so that references to the end of a sequence stay valid.
        """
        parent, documents = self.parent, self.documents
        assert parent is not None, "the root has no documents to split"
        upper = Branch(documents[:count], parent=parent, members=self.members, tick=self.tick)
        parent.children[documents[0]] = upper
        self.documents, self.parent = documents[count:], upper
        upper.children[documents[count]] = self
        return upper
