"""A mirror of one engine's prefix cache, built from its events.

Knows blocks, media and request ids. Does not know sequence numbers, sockets or documents. Stands
for the model of RAGBoost section 4.1 ("Index update") where an engine tells what it does.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from ragboost.cache_sync.blocks import MirrorBlock, block_key, root_key, token_bytes
from ragboost.engine_hooks.events import BlockHash, BlockRemoved, BlockStored, EventBatch
from ragboost.errors import ContextIndexError

FULL_ATTENTION = frozenset({"full_attention", "mla_attention", "sink_full_attention"})
"""Kinds of KV cache groups in which every block of a prefix must be cached for a hit."""


class Changes(NamedTuple):
    """What a batch of events did to the requests that the mirror knows.

    Attributes:
        resident_tokens: by request id, the leading tokens of its prompt (and answer) that are
            cached now. 0: nothing is left, and the mirror has forgotten the request.
        is_cleared: everything was removed; every request not in `resident_tokens` has 0.
    """

    resident_tokens: dict[str, int]
    is_cleared: bool = False


class PrefixMirror:
    """Which token prefixes are cached, exactly, as long as every event is applied in order.

    Copies are counted per hash: vLLM stores equal blocks more than once, and removes each. A chain
    whose parent is unknown is left out, never attached to the root. Only one full-attention group
    counts. `resident_tokens` may be called from another thread; everything else may not.

    Args:
        media: the media that count as resident.
        max_blocks: blocks kept; what comes beyond is left out, and the mirror is partial.
        max_requests: request ids kept; the least recently stored go first.

    Attributes:
        block_size: tokens per block as the events say; 0 before the first stored block.
        is_partial: the engine may hold blocks that the mirror does not know.
        num_unknown: events that could not be applied: chains without a known parent, removals of
            blocks never stored, blocks that contradict earlier ones, unknown kinds.
        num_resident_tokens: tokens of all blocks that a prompt could hit.
        is_tree: a radix tree, such as SGLang's, which names no groups of blocks. It holds a prompt
            when its prefill is over; others hold blocks as soon as they are scheduled.
    """

    def __init__(
        self,
        *,
        media: Iterable[str] = ("GPU",),
        max_blocks: int = 2_000_000,
        max_requests: int = 200_000,
    ) -> None:
        self.media = frozenset(media)
        self.max_blocks = max_blocks
        self.max_requests = max_requests
        self.num_unknown = 0
        self._blocks: dict[BlockHash, MirrorBlock] = {}
        self._by_key: dict[bytes, MirrorBlock] = {}  # namespaces' roots and blocks, by own identity
        self._requests: OrderedDict[str, MirrorBlock] = OrderedDict()
        self._touched: set[str] = set()
        self.clear(is_partial=True)

    def __len__(self) -> int:
        return len(self._blocks)

    @property
    def num_requests(self) -> int:
        """Request ids of which something is resident."""
        return len(self._requests)

    def clear(self, *, is_partial: bool) -> None:
        """Forget everything; `is_partial` says whether the engine's cache may hold blocks."""
        self._blocks.clear()
        self._by_key.clear()
        self._requests.clear()
        self._touched.clear()
        self._group: int | None = None
        self.block_size = 0
        self.is_tree = False
        self.num_resident_tokens = 0
        self.is_partial = is_partial

    def apply(self, batch: EventBatch) -> Changes:
        """Apply the events of one batch in order, and say which requests changed."""
        is_cleared = False
        self._miss(len(batch.unknown))
        for event in batch.events:
            if isinstance(event, BlockStored):
                self._store(event)
            elif isinstance(event, BlockRemoved):
                self._remove(event)
            else:
                is_cleared = True
                self.clear(is_partial=False)
        touched, self._touched = self._touched, set()
        return Changes({request: self._settle(request) for request in sorted(touched)}, is_cleared)

    def resident_tokens(self, request_id: str) -> int | None:
        """Leading tokens of a request that are cached now; None if the mirror does not know it."""
        block = self._requests.get(request_id)
        while block is not None and not block.is_reachable:
            block = block.parent
        return None if block is None else block.end

    def match_tokens(
        self,
        token_ids: Sequence[int],
        *,
        lora_name: str | None = None,
        cache_salt: str | None = None,
    ) -> int:
        """Leading tokens of a prompt that are cached now, in whole blocks.

        Args:
            token_ids: the whole prompt as the engine tokenises it.
            lora_name: the adapter's name, where the request uses one.
            cache_salt: the request's cache salt, where it has one.
        """
        size, end = self.block_size, 0
        key = root_key(lora_name, () if cache_salt is None else (cache_salt,))
        raw = token_bytes(token_ids)
        while size and end + size <= len(token_ids):
            key = block_key(key, raw[end * 8 : (end + size) * 8], None)
            block = self._by_key.get(key)
            if block is None or not block.is_reachable:
                break
            end += size
        return end

    def _store(self, event: BlockStored) -> None:
        if not self._counts_group(event.group_idx, kind=event.kv_cache_spec_kind):
            return
        hashes, size = event.block_hashes, event.block_size
        extras = (
            event.extra_keys if event.extra_keys and len(event.extra_keys) == len(hashes) else None
        )
        parent = self._parent(event, extras[0] if extras else None)
        if parent is None or size <= 0 or len(event.token_ids) not in (0, len(hashes) * size):
            self._miss(1)
            return
        self.is_tree = event.group_idx is None
        medium = event.medium or "GPU"
        raw, width = token_bytes(event.token_ids), size * 8
        for i, block_hash in enumerate(hashes):
            block = self._blocks.get(block_hash)
            if block is None:
                if not raw or len(self._blocks) >= self.max_blocks:
                    self._miss(1)
                    return
                extra = extras[i] if extras else None
                key = block_key(parent.key, raw[i * width : (i + 1) * width], extra)
                block = MirrorBlock(block_hash, parent, key=key, num_tokens=size)
                self._blocks[block_hash] = block
                self._by_key.setdefault(key, block)
                self.block_size = self.block_size or size
            elif block.parent is not parent:
                self._miss(1)
            block.count(medium, 1)
            if not block.is_reachable and medium in self.media and parent.is_reachable:
                self._reach(block)
            parent = block
        if event.session_id is not None and hashes:
            self._place(event.session_id, parent)
            self._touched.add(event.session_id)

    def _counts_group(self, group: int | None, *, kind: str | None) -> bool:
        """Of a hybrid model's groups the first one of full attention speaks for all."""
        if kind is not None and kind not in FULL_ATTENTION:
            return False
        if group is None:
            return True
        if self._group is None:
            self._group = group
        return group == self._group

    def _parent(self, event: BlockStored, extra: list[Any] | None) -> MirrorBlock | None:
        """The block before the first one of the event; a namespace's root; None if not known."""
        if event.parent_block_hash is not None:
            return self._blocks.get(event.parent_block_hash)
        if not event.token_ids and event.block_hashes:  # a tier may name known blocks only
            known = self._blocks.get(event.block_hashes[0])
            return known and known.parent
        key = _namespace(event, extra)
        root = self._by_key.get(key)
        if root is None:
            root = self._by_key[key] = MirrorBlock(None, None, key=key, num_tokens=0)
        return root

    def _remove(self, event: BlockRemoved) -> None:
        if event.group_idx != self._group and event.group_idx is not None:
            return
        medium = event.medium or "GPU"
        for block_hash in event.block_hashes:
            block = self._blocks.get(block_hash)
            if block is None or not block.copies_on(medium):
                self._miss(1)
                continue
            block.count(medium, -1)
            if block.is_reachable and not self._is_resident(block):
                self._unreach(block)
            self._prune(block)

    def _is_resident(self, block: MirrorBlock) -> bool:
        if block.copies and "GPU" in self.media:
            return True
        return block.elsewhere is not None and not self.media.isdisjoint(block.elsewhere)

    def _reach(self, block: MirrorBlock) -> None:
        pending = [block]
        while pending:
            block = pending.pop()
            block.is_reachable = True
            self.num_resident_tokens += block.num_tokens
            pending += [child for child in block.children() if self._is_resident(child)]

    def _unreach(self, block: MirrorBlock) -> None:
        pending = [block]
        while pending:
            block = pending.pop()
            block.is_reachable = False
            self.num_resident_tokens -= block.num_tokens
            if block.requests:
                self._touched |= block.requests
            pending += [child for child in block.children() if child.is_reachable]

    def _prune(self, block: MirrorBlock) -> None:
        """Drop places that no longer lead to a cached block, and namespaces without blocks."""
        while not block.is_needed:
            if block.block_hash is not None:
                del self._blocks[block.block_hash]
            if self._by_key.get(block.key) is block:
                del self._by_key[block.key]
            block.detach()
            if block.parent is None:
                return
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

    def _settle(self, request_id: str) -> int:
        """Move a request up to its deepest block that is still resident; 0 where none is."""
        start = block = self._requests.get(request_id)
        while block is not None and not block.is_reachable:
            block = block.parent
        if block is None or block.parent is None:
            self._release(request_id)
            return 0
        if block is not start:
            self._place(request_id, block)
        return block.end

    def _miss(self, count: int) -> None:
        if count:
            self.num_unknown += count
            self.is_partial = True

    def check_integrity(self) -> None:
        """Check every invariant, in time linear in the number of blocks.

        Raises:
            ContextIndexError: an invariant is broken; the message says where.
        """
        reached = 0
        for block_hash, block in self._blocks.items():
            parent = block.parent
            if parent is None or block.block_hash != block_hash:
                raise ContextIndexError(f"block {block_hash!r} hangs at the wrong place")
            if block.is_reachable != (parent.is_reachable and self._is_resident(block)):
                raise ContextIndexError(
                    f"block {block_hash!r}: is_reachable {block.is_reachable}, its parent "
                    f"{parent.is_reachable}, copies {block.copies} and {block.elsewhere}"
                )
            if not block.is_needed or block.copies < 0:
                raise ContextIndexError(f"block {block_hash!r} is kept with {block.copies} copies")
            reached += block.num_tokens * block.is_reachable
        if reached != self.num_resident_tokens:
            raise ContextIndexError(
                f"{reached} tokens resident, counted {self.num_resident_tokens}"
            )
        roots = [block for block in self._by_key.values() if block.parent is None]
        hung = sum(1 for block in (*roots, *self._blocks.values()) for _ in block.children())
        if hung != len(self._blocks):
            raise ContextIndexError(f"{len(self._blocks)} blocks kept, {hung} hang in the tree")
        for request, block in self._requests.items():
            if block.requests is None or request not in block.requests or not block.is_reachable:
                raise ContextIndexError(f"request {request!r} is not held by a resident block")


def _namespace(event: BlockStored, extra: list[Any] | None) -> bytes:
    """LoRA name, then salt: vLLM puts both into the first block's extra keys, SGLang in fields."""
    lora = event.lora_name
    texts = [part for part in extra or () if isinstance(part, str)]
    if lora is not None and lora in texts:
        texts.remove(lora)
    if lora is None and event.lora_id is not None:
        lora = f"lora_id:{event.lora_id}"
    if event.cache_salt is not None:
        texts.append(event.cache_salt)
    return root_key(lora, texts)
