"""A block of a prefix cache, linked into the tree of its mirror."""

from collections.abc import Iterator

from ragboost.cache_events import BlockHash


class MirrorBlock:
    """One cached block, or the placeholder of an evicted one whose descendants are still cached."""

    __slots__ = (
        "block_hash",
        "content",
        "copies",
        "end",
        "first_child",
        "is_approximate",
        "is_reachable",
        "next_sibling",
        "parent",
        "previous_sibling",
        "requests",
    )

    def __init__(
        self,
        block_hash: BlockHash | None,
        parent: "MirrorBlock | None",
        *,
        num_tokens: int,
        content: int = 0,
    ) -> None:
        self.block_hash = block_hash
        self.parent = parent
        self.content = content  # hash of its tokens, of media, and first in a prompt of the salt
        self.end = num_tokens  # tokens of the prompt up to and including this block
        self.copies = 0  # physical copies on the GPU
        self.is_approximate = False  # its KV is no prefix hit for exact requests
        self.is_reachable = parent is None  # it and all blocks before it are resident
        # Ids of the requests whose deepest known block this is.
        self.requests: set[str] | None = None
        self.first_child: MirrorBlock | None = None
        self.next_sibling: MirrorBlock | None = None
        self.previous_sibling: MirrorBlock | None = None
        if parent is not None:
            self.end += parent.end
            self.next_sibling = parent.first_child
            if parent.first_child is not None:
                parent.first_child.previous_sibling = self
            parent.first_child = self

    @property
    def num_tokens(self) -> int:
        return self.end - (self.parent.end if self.parent is not None else 0)

    @property
    def is_needed(self) -> bool:
        """It is cached, or a block after it is."""
        return bool(self.copies or self.first_child)

    def children(self) -> Iterator["MirrorBlock"]:
        child = self.first_child
        while child is not None:
            yield child
            child = child.next_sibling

    def detach(self) -> None:
        """Remove this block from its parent's children; `parent` stays set."""
        if self.previous_sibling is not None:
            self.previous_sibling.next_sibling = self.next_sibling
        elif self.parent is not None:
            self.parent.first_child = self.next_sibling
        if self.next_sibling is not None:
            self.next_sibling.previous_sibling = self.previous_sibling
        self.next_sibling = self.previous_sibling = None

    def unlink(self) -> None:
        """Forget all other blocks, so that each is freed without the garbage collector."""
        self.parent = self.first_child = self.next_sibling = self.previous_sibling = None
