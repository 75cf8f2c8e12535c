"""Mirror one engine's prefix cache from its events: blocks and request ids."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ragboost.cache_events import (
    APPROXIMATE,
    BlockHash,
    BlockRemoved,
    BlockStored,
    EventBatch,
)
from ragboost.cache_sync.mirror_block import MirrorBlock
from ragboost.errors import ContextIndexError

_MAX_REQUEST_ID = 256  # characters; ids may be chosen by clients
_STEPS_PER_EVENT = 64  # blocks that may be walked over for each event, over time
_MAX_OWED = 1024  # blocks walked over ahead of the events that pay for them

FULL_ATTENTION = frozenset({"full_attention", "mla_attention", "sink_full_attention"})
"""Kinds of KV cache groups in which every block of a prefix must be cached for a hit."""


class Changes(NamedTuple):
    """The requests whose cached tokens a batch of events changed."""

    # By request id, the leading tokens of its prompt (and response) that are cached now. 0: all
    # were evicted, and the mirror has dropped the request.
    resident_tokens: dict[str, int]
    is_cleared: bool = False  # the cache was cleared; requests not in `resident_tokens` have 0


class PrefixMirror:
    """The token prefixes in one engine's cache, exact if every event is applied in order.

    Copies are counted per hash: vLLM stores equal blocks more than once, and removes each. A chain
    whose parent is unknown is skipped, never attached to the root. Of a hybrid model's groups, one
    with full attention counts. Only `resident_tokens` may be called from other threads.

    Blocks beyond `max_blocks` are skipped, which makes the mirror partial; request ids beyond
    `max_requests` are dropped by last store.
    """

    def __init__(self, *, max_blocks: int = 2_000_000, max_requests: int = 20_000) -> None:
        self.max_blocks = max_blocks
        self.max_requests = max_requests
        # Events that could not be applied: chains without a known parent, removals of blocks never
        # stored, blocks that contradict earlier ones, unknown kinds.
        self.num_unknown = 0
        self._blocks: dict[BlockHash, MirrorBlock] = {}
        self._root = MirrorBlock(None, None, num_tokens=0)
        self._requests: OrderedDict[str, MirrorBlock] = OrderedDict()
        self._touched: set[str] = set()
        # Stored or removed since blocks were settled. Events that take turns at the beginning of a
        # long chain would walk it again and again: the next walk waits until events have paid for
        # the last one, or the stream is idle.
        self._changed: dict[MirrorBlock, None] = {}
        self._owed = 0  # blocks walked over that no event has paid for
        self.clear(is_partial=True)

    def __len__(self) -> int:
        return len(self._blocks)

    @property
    def num_requests(self) -> int:
        return len(self._requests)

    def clear(self, *, is_partial: bool) -> None:
        """Drop all blocks and requests; if partial, the engine's cache may still hold blocks."""
        blocks, self._blocks = self._blocks, {}
        self._requests.clear()
        self._touched.clear()
        self._changed.clear()
        self._is_cleared = False
        self._owed = 0
        self._group: int | None = None
        self._sparse_groups: set[int] = set()  # that are no full attention
        self.block_size = 0
        self.is_tree = False
        self.num_resident_tokens = 0
        self.is_partial = is_partial
        for block in (self._root, *blocks.values()):
            block.unlink()

    def apply(self, batch: EventBatch) -> Changes:
        """Apply events; return what they changed, or leave that to a later call of `settle`."""
        self._count_unknown(len(batch.unknown))
        for event in batch.events:
            if isinstance(event, BlockStored):
                self._store(event)
            elif isinstance(event, BlockRemoved):
                self._remove(event)
            else:
                self.clear(is_partial=False)
                self._is_cleared = True
        self._owed = max(0, self._owed - _STEPS_PER_EVENT * len(batch.events))
        return self.settle() if self._owed <= _MAX_OWED else Changes({})

    def settle(self) -> Changes:
        """Bring blocks and requests up to date; return what has changed since the last time."""
        is_cleared, self._is_cleared = self._is_cleared, False
        self._settle_blocks()
        return Changes(self._settle_requests(), is_cleared)

    def resident_tokens(self, request_id: str) -> int | None:
        """Return the leading tokens of a request that are cached; None if it is unknown."""
        block = self._requests.get(request_id)
        while block is not None and not block.is_reachable:
            block = block.parent
        return None if block is None else block.end

    def copies(self) -> dict[BlockHash, int]:
        return {key: block.copies for key, block in self._blocks.items() if block.copies}

    def match_tokens(
        self,
        token_ids: Sequence[int],
        *,
        lora_name: str | None = None,
        cache_salt: str | None = None,
    ) -> int:
        """Return the leading tokens of a prompt that are cached, in whole blocks."""
        size, end, found = self.block_size, 0, [self._root]
        salts = () if cache_salt is None else (cache_salt,)
        while size and end + size <= len(token_ids):
            namespace = (lora_name, *salts) if not end else ()
            content = hash((*namespace, *token_ids[end : end + size]))
            children = [child for block in found for child in block.children()]
            found = [each for each in children if each.is_reachable and each.content == content]
            if not found:
                break
            end += size
        return end

    def _store(self, event: BlockStored) -> None:
        # Another medium's copies are no prefix hits; what is loaded from there is stored again.
        if (event.medium or "GPU") != "GPU":
            return
        if not self._is_counted_group(event):
            return
        hashes, size = event.block_hashes, event.block_size
        if not hashes:
            return
        parent = self._parent(event)
        is_valid = size > 0 and len(event.token_ids) in (0, len(hashes) * size)
        if parent is None or not is_valid:
            self._count_unknown(1)
            self._prune(parent)
            return
        self.is_tree = event.group_idx is None
        for i, block_hash in enumerate(hashes):
            block = self._blocks.get(block_hash)
            if block is None:
                if not event.token_ids or len(self._blocks) >= self.max_blocks:
                    self._count_unknown(1)
                    self._prune(parent)
                    return
                content = _content(event, i, is_first=parent is self._root)
                block = MirrorBlock(block_hash, parent, num_tokens=size, content=content)
                self._blocks[block_hash] = block
                self.block_size = self.block_size or size
            elif block.parent is not parent:
                self._count_unknown(1)
            block.copies += 1
            self._changed[block] = None
            parent = block
        if event.session_id is not None and len(event.session_id) <= _MAX_REQUEST_ID:
            self._place(event.session_id, parent)
            self._touched.add(event.session_id)

    def _is_counted_group(self, event: BlockStored) -> bool:
        """Return True for the group with full attention, which gives each block of tokens a hash.

        Engines that do not say of which kind a group is are judged by that: a Mamba group keeps the
        last state of a prefix alone, so that its hashes are fewer than its blocks of tokens.
        """
        group, kind = event.group_idx, event.kv_cache_spec_kind
        if kind is not None and kind not in FULL_ATTENTION:
            return False
        if group is None:
            return True
        if kind is None and _is_sparse(event):
            if group == self._group:  # its first events had one block each
                requests = set(self._requests)
                self.clear(is_partial=True)
                self._touched |= requests
            self._sparse_groups.add(group)
        if group in self._sparse_groups:
            return False
        if self._group is None:
            self._group = group
        return group == self._group

    def _parent(self, event: BlockStored) -> MirrorBlock | None:
        if event.parent_block_hash is not None:
            return self._blocks.get(event.parent_block_hash)
        if not event.token_ids and event.block_hashes:  # of known blocks only
            first = self._blocks.get(event.block_hashes[0])
            return first and first.parent
        return self._root

    def _remove(self, event: BlockRemoved) -> None:
        if event.group_idx != self._group and event.group_idx is not None:
            return
        medium = event.medium or "GPU"
        if medium == APPROXIMATE:
            self._withdraw(event.block_hashes)
        if medium != "GPU":
            return
        for block_hash in event.block_hashes:
            block = self._blocks.get(block_hash)
            if block is None or not block.copies:
                self._count_unknown(1)
                continue
            block.copies -= 1
            self._changed[block] = None
            self._prune(block)

    def _withdraw(self, hashes: Iterable[BlockHash]) -> None:
        """Take blocks and those after them for approximate; the engine still holds them."""
        for block_hash in hashes:
            block = self._blocks.get(block_hash)
            if block is not None:
                block.is_approximate = True
                self._changed[block] = None

    def _is_resident(self, block: MirrorBlock) -> bool:
        return bool(block.copies) and not block.is_approximate

    def _settle_blocks(self) -> None:
        """Bring `is_reachable` of the changed blocks and those behind them up to date."""
        changed = list(self._changed)
        self._changed.clear()
        for block in changed:
            if block.is_reachable and not self._is_resident(block):
                self._mark_unreachable(block)
        for block in changed:
            parent = block.parent
            is_behind = parent is not None and parent.is_reachable
            if is_behind and not block.is_reachable and self._is_resident(block):
                self._mark_reachable(block)

    def _mark_reachable(self, block: MirrorBlock) -> None:
        pending = [block]
        while pending:
            block = pending.pop()
            self._owed += 1
            block.is_reachable = True
            self.num_resident_tokens += block.num_tokens
            pending += [child for child in block.children() if self._is_resident(child)]

    def _mark_unreachable(self, block: MirrorBlock) -> None:
        pending = [block]
        while pending:
            block = pending.pop()
            self._owed += 1
            block.is_reachable = False
            self.num_resident_tokens -= block.num_tokens
            if block.requests:
                self._touched |= block.requests
            pending += [child for child in block.children() if child.is_reachable]

    def _prune(self, block: MirrorBlock | None) -> None:
        """Drop placeholders that no longer lead to a cached block."""
        while block is not None and block.block_hash is not None and not block.is_needed:
            del self._blocks[block.block_hash]
            block.detach()
            block = block.parent

    def _place(self, request_id: str, block: MirrorBlock) -> None:
        self._release(request_id)
        self._requests[request_id] = block
        block.requests = block.requests or set()
        block.requests.add(request_id)
        if len(self._requests) > self.max_requests:
            self._release(next(iter(self._requests)))

    def _release(self, request_id: str) -> None:
        block = self._requests.pop(request_id, None)
        if block is not None and block.requests is not None:
            block.requests.discard(request_id)

    def _settle_requests(self) -> dict[str, int]:
        """Move touched requests to their deepest resident blocks; return the tokens up to there."""
        touched, self._touched = self._touched, set()
        nearest: dict[MirrorBlock, MirrorBlock] = {}  # resident, of the blocks walked over
        tokens = {}
        for request_id in sorted(touched):
            block, path = self._requests.get(request_id), []
            while block is not None and not block.is_reachable:
                path.append(block)
                block = nearest.get(block, block.parent)
            if block is None or block.parent is None:
                self._release(request_id)
            elif path:
                self._place(request_id, block)
            if block is not None:
                nearest.update(dict.fromkeys(path, block))
            self._owed += len(path)
            tokens[request_id] = 0 if block is None else block.end
        return tokens

    def _count_unknown(self, count: int) -> None:
        if count:
            self.num_unknown += count
            self.is_partial = True

    def check_integrity(self) -> None:
        """Raise ContextIndexError for a broken invariant; takes linear time."""
        reached = 0
        for block_hash, block in self._blocks.items():
            parent = block.parent
            if parent is None or block.block_hash != block_hash:
                raise ContextIndexError(f"block {block_hash!r} has no parent or another hash")
            if block.is_reachable != (parent.is_reachable and self._is_resident(block)):
                raise ContextIndexError(
                    f"block {block_hash!r}: is_reachable {block.is_reachable}, its parent "
                    f"{parent.is_reachable}, copies {block.copies}"
                )
            if not block.is_needed or block.copies < 0:
                raise ContextIndexError(f"block {block_hash!r} has {block.copies} copies")
            reached += block.num_tokens * block.is_reachable
        if reached != self.num_resident_tokens:
            raise ContextIndexError(
                f"{reached} tokens are resident, {self.num_resident_tokens} counted"
            )
        parents = (self._root, *self._blocks.values())
        linked = sum(1 for block in parents for _ in block.children())
        if linked != len(self._blocks):
            raise ContextIndexError(f"{len(self._blocks)} blocks stored, {linked} in the tree")
        for request, block in self._requests.items():
            if block.requests is None or request not in block.requests or not block.is_reachable:
                raise ContextIndexError(f"request {request!r} belongs to no resident block")


def _is_sparse(event: BlockStored) -> bool:
    """Return True if an event has fewer hashes than whole blocks of tokens."""
    num_tokens, size = len(event.token_ids), event.block_size
    return size > 0 and num_tokens % size == 0 and num_tokens > len(event.block_hashes) * size


def _content(event: BlockStored, number: int, *, is_first: bool) -> int:
    """Hash what a block holds: LoRA name and salt (first in a prompt; extra keys in vLLM, fields in
    SGLang), tokens (of a bigram the first), ids of media."""
    size, extras, lora = event.block_size, event.extra_keys or (), event.lora_name
    extra = extras[number] or () if len(extras) == len(event.block_hashes) else ()
    namespace: list[str | None] = []
    if is_first:
        if lora is None and event.lora_id is not None:
            lora = f"lora_id:{event.lora_id}"
        namespace = [lora, *[part for part in extra if isinstance(part, str) and part != lora]]
        namespace += [event.cache_salt] if event.cache_salt is not None else []
    tokens = event.token_ids[number * size : (number + 1) * size]
    ids = [token if isinstance(token, int) else token[0] for token in tokens]
    media = [repr(part) for part in extra if not isinstance(part, str)]
    return hash((*namespace, *ids, *media))
