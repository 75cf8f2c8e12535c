"""A mirror that tests compare with an engine: it knows the tokens of its blocks.

The product asks by request ids alone, and keeps no tokens.
"""

from collections import Counter
from collections.abc import Sequence

from ragboost.cache_events import BlockHash, BlockStored
from ragboost.cache_sync.prefix_mirror import MirrorBlock, PrefixMirror


class TokenMirror(PrefixMirror):
    def __init__(self, *, max_blocks: int = 2_000_000, max_requests: int = 20_000) -> None:
        self._contents: dict[BlockHash, int] = {}  # hashes of what the blocks hold
        super().__init__(max_blocks=max_blocks, max_requests=max_requests)

    def _store(self, event: BlockStored) -> None:
        for number, block_hash in enumerate(event.block_hashes if event.token_ids else ()):
            if block_hash not in self._blocks:
                self._contents[block_hash] = _content(event, number)
        super()._store(event)

    def copies(self) -> Counter[BlockHash]:
        return Counter({key: block.copies for key, block in self._blocks.items() if block.copies})

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
            found = [each for each in children if self._holds(each, content)]
            if not found:
                break
            end += size
        return end

    def _holds(self, block: MirrorBlock, content: int) -> bool:
        assert block.block_hash is not None
        return block.is_reachable and self._contents[block.block_hash] == content

    def check_integrity(self) -> None:
        """Check every invariant; takes linear time."""
        reached = 0
        for block_hash, block in self._blocks.items():
            parent = block.parent
            assert parent is not None, block_hash
            assert block.block_hash == block_hash
            is_reachable = parent.is_reachable and self._is_resident(block)
            assert block.is_reachable == is_reachable, (block_hash, block.copies)
            assert block.is_needed, block_hash
            assert block.copies >= 0, (block_hash, block.copies)
            reached += block.num_tokens * block.is_reachable
        assert reached == self.num_resident_tokens
        parents = (self._root, *self._blocks.values())
        assert sum(1 for block in parents for _ in block.children()) == len(self._blocks)
        for request, block in self._requests.items():
            assert block.requests is not None, request
            assert request in block.requests
            assert block.is_reachable, request


def _content(event: BlockStored, number: int) -> int:
    """Hash what a block holds: LoRA name and salt (first in a prompt; extra keys in vLLM, fields in
    SGLang), tokens (of a bigram the first), ids of media."""
    size, extras, lora = event.block_size, event.extra_keys or (), event.lora_name
    extra = extras[number] or () if len(extras) == len(event.block_hashes) else ()
    namespace: list[str | None] = []
    if event.parent_block_hash is None and not number:
        if lora is None and event.lora_id is not None:
            lora = f"lora_id:{event.lora_id}"
        namespace = [lora, *[part for part in extra if isinstance(part, str) and part != lora]]
        namespace += [event.cache_salt] if event.cache_salt is not None else []
    tokens = event.token_ids[number * size : (number + 1) * size]
    ids = [token if isinstance(token, int) else token[0] for token in tokens]
    media = [repr(part) for part in extra if not isinstance(part, str)]
    return hash((*namespace, *ids, *media))
