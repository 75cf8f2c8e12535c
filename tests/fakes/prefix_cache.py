"""Exact block-hash prefix cache over a deterministic tokenizer, modelled on vLLM's.

Caches full blocks only, chains hashes to the parent, and evicts the least recently used leaf first.
Does not know HTTP.
"""

import hashlib
import re
import zlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

_PIECE = re.compile(r"\s?\w+|\s?[^\w\s]|\s+")

Event = dict[str, Any]


def tokenize(text: str) -> list[int]:
    """Return one token id per word, punctuation mark or run of spaces; deterministic."""
    return [
        zlib.crc32(piece.encode("utf-8", "surrogatepass")) & 0x7FFFFFFF
        for piece in _PIECE.findall(text)
    ]


class Block(NamedTuple):
    """A cached block: its tokens and the hash of its parent."""

    tokens: tuple[int, ...]
    parent: int | None


class PrefixCache:
    """Blocks by chained hash, in least-recently-used order.

    Args:
        block_size: tokens per block; only full blocks are cached.
        capacity_tokens: maximum tokens cached; None is unbounded.
        publish: called with the events of one change, in vLLM's shape; None publishes nothing.
    """

    def __init__(
        self,
        block_size: int = 16,
        capacity_tokens: int | None = None,
        *,
        publish: Callable[[list[Event]], None] | None = None,
    ) -> None:
        self.block_size = block_size
        self.capacity_blocks = None if capacity_tokens is None else capacity_tokens // block_size
        self.blocks: OrderedDict[int, Block] = OrderedDict()
        self._publish = publish

    def match(self, tokens: Sequence[int], *, salt: str = "") -> int:
        """Count the leading tokens that are cached, at most all but the last one."""
        matched = 0
        for block_hash, _ in self._chain(tokens[: max(len(tokens) - 1, 0)], salt):
            if block_hash not in self.blocks:
                break
            matched += self.block_size
        return matched

    def insert(
        self, tokens: Sequence[int], *, salt: str = "", session_id: str | None = None
    ) -> None:
        """Store every full block of `tokens`, evict down to the capacity, publish both."""
        stored: list[tuple[int, Block]] = []
        chain = list(self._chain(tokens, salt))[: self.capacity_blocks]
        for block_hash, block in chain:
            if block_hash not in self.blocks:
                self.blocks[block_hash] = block
                stored.append((block_hash, block))
        for block_hash, _ in reversed(chain):  # evict the tail first: a chain has no gap
            self.blocks.move_to_end(block_hash)
        removed = self._evict()
        if self._publish is not None and (stored or removed):
            self._publish(
                self._removed_events(removed) + self._stored_events(stored, salt, session_id)
            )

    def clear(self) -> None:
        """Remove all blocks and publish the event."""
        self.blocks.clear()
        if self._publish is not None:
            self._publish([{"type": "AllBlocksCleared"}])

    def _chain(self, tokens: Sequence[int], salt: str) -> list[tuple[int, Block]]:
        parent: int | None = None
        chain: list[tuple[int, Block]] = []
        for start in range(0, len(tokens) - self.block_size + 1, self.block_size):
            block = tuple(tokens[start : start + self.block_size])
            seed = salt if parent is None else parent
            digest = hashlib.sha256(repr((seed, block)).encode()).digest()
            block_hash = int.from_bytes(digest[:8], "big")
            chain.append((block_hash, Block(block, parent)))
            parent = block_hash
        return chain

    def _evict(self) -> list[int]:
        removed: list[int] = []
        while self.capacity_blocks is not None and len(self.blocks) > self.capacity_blocks:
            removed.append(self.blocks.popitem(last=False)[0])
        return removed

    def _stored_events(
        self, stored: list[tuple[int, Block]], salt: str, session_id: str | None
    ) -> list[Event]:
        runs: list[list[tuple[int, Block]]] = []
        for block_hash, block in stored:
            if runs and runs[-1][-1][0] == block.parent:
                runs[-1].append((block_hash, block))
            else:
                runs.append([(block_hash, block)])
        return [
            {
                "type": "BlockStored",
                "block_hashes": [block_hash for block_hash, _ in run],
                "parent_block_hash": run[0][1].parent,
                "token_ids": [token for _, block in run for token in block.tokens],
                "block_size": self.block_size,
                "lora_id": None,
                "medium": "GPU",
                "lora_name": None,
                "extra_keys": [
                    [salt] if salt and block.parent is None else None for _, block in run
                ],
                "group_idx": 0,
                "kv_cache_spec_kind": "full_attention",
                "session_id": session_id,
            }
            for run in runs
        ]

    @staticmethod
    def _removed_events(removed: list[int]) -> list[Event]:
        return [
            {"type": "BlockRemoved", "block_hashes": [block_hash], "medium": "GPU", "group_idx": 0}
            for block_hash in removed
        ]
