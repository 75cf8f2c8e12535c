"""A run of documents in the tree that several context indexes share; see `PrefixDirectory`."""

from collections.abc import Hashable


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
