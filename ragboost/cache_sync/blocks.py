"""The tree of cached blocks behind a mirror: chains, places and the identity of a block.

Knows parents, children and token ids. Does not know events, media or requests.
"""

import hashlib
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

from ragboost.engine_hooks.events import BlockHash


class MirrorBlock:
    """One cached block, or the place of a removed one before blocks that are still cached.

    Attributes:
        key: own identity, 16 bytes: namespace, all tokens up to here, multimodal ids.
        end: tokens of the prompt up to and including this block.
        copies: physical copies on the GPU.
        elsewhere: physical copies by other medium.
        is_reachable: it and all blocks before it are resident.
        requests: ids of the requests whose deepest known block this is.
    """

    __slots__ = (
        "block_hash",
        "copies",
        "elsewhere",
        "end",
        "first_child",
        "is_reachable",
        "key",
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
        key: bytes,
        num_tokens: int,
    ) -> None:
        self.block_hash = block_hash
        self.parent = parent
        self.key = key
        self.end = num_tokens
        self.copies = 0
        self.elsewhere: dict[str, int] | None = None
        self.is_reachable = parent is None
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
        """Tokens of this block alone."""
        return self.end - (self.parent.end if self.parent is not None else 0)

    @property
    def is_needed(self) -> bool:
        """Whether it is cached anywhere, or stands before a block that is."""
        return bool(self.copies or self.elsewhere or self.first_child)

    def children(self) -> Iterator["MirrorBlock"]:
        """The blocks that continue this one, latest first."""
        child = self.first_child
        while child is not None:
            yield child
            child = child.next_sibling

    def detach(self) -> None:
        """Leave the parent's children; `parent` stays set."""
        if self.previous_sibling is not None:
            self.previous_sibling.next_sibling = self.next_sibling
        elif self.parent is not None:
            self.parent.first_child = self.next_sibling
        if self.next_sibling is not None:
            self.next_sibling.previous_sibling = self.previous_sibling
        self.next_sibling = self.previous_sibling = None

    def copies_on(self, medium: str) -> int:
        """Physical copies on one medium."""
        if medium == "GPU":
            return self.copies
        return self.elsewhere.get(medium, 0) if self.elsewhere else 0

    def count(self, medium: str, change: int) -> None:
        """Add or take away physical copies on one medium."""
        if medium == "GPU":
            self.copies += change
            return
        self.elsewhere = self.elsewhere or {}
        self.elsewhere[medium] = self.elsewhere.get(medium, 0) + change
        if not self.elsewhere[medium]:
            del self.elsewhere[medium]


def root_key(lora_name: str | None, parts: Iterable[str]) -> bytes:
    """Identity of a namespace: LoRA name, then cache salt; length-delimited, so never ambiguous."""
    return hashlib.blake2b(repr((lora_name, *parts)).encode(), digest_size=16).digest()


def block_key(parent_key: bytes, tokens: memoryview, extra: list[Any] | None) -> bytes:
    """Identity of a block: its parent's, its tokens (8 bytes each) and its multimodal ids."""
    digest = hashlib.blake2b(parent_key, digest_size=16)
    digest.update(tokens)
    if extra:
        media = [part for part in extra if not isinstance(part, str)]
        if media:  # the same placeholder tokens stand for another image
            digest.update(repr(media).encode())
    return digest.digest()


def token_bytes(token_ids: Sequence[int] | Sequence[int | tuple[int, ...]]) -> memoryview:
    """Token ids as 8 bytes each; of a bigram the first token, which stands at that position."""
    ids: array[int]
    try:
        ids = array("q", cast(Sequence[int], token_ids))
    except TypeError:
        ids = array("q", [t if isinstance(t, int) else t[0] for t in token_ids])
    return memoryview(ids).cast("B")
