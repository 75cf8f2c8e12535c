"""A mirror that also remembers the tokens of its blocks, to be compared with engines by prompts."""

from collections.abc import Iterable, Sequence

from ragboost.cache_events import BlockHash, BlockStored, EventBatch
from ragboost.cache_sync.event_stream import EventStream
from ragboost.cache_sync.prefix_mirror import Changes, PrefixMirror


def matched(stream: EventStream, tokens: Sequence[int], *, cache_salt: str | None = None) -> int:
    assert isinstance(stream.mirror, TokenMirror)
    return stream.mirror.match_tokens(tokens, cache_salt=cache_salt)


class TokenMirror(PrefixMirror):
    def __init__(self, **limits: int) -> None:
        super().__init__(**limits)
        self._keys: dict[BlockHash, int] = {}  # of namespace, tokens up to here, and media
        self._hashes: dict[int, set[BlockHash]] = {}  # of equal blocks, by key

    def apply(self, batch: EventBatch) -> Changes:
        for event in batch.events:
            if isinstance(event, BlockStored):
                self._note(event)
        return super().apply(batch)

    def match_tokens(
        self,
        token_ids: Sequence[int],
        *,
        lora_name: str | None = None,
        cache_salt: str | None = None,
    ) -> int:
        """Return the leading tokens of a prompt that are cached, in whole blocks."""
        size, end = self.block_size, 0
        key = _root(lora_name, () if cache_salt is None else (cache_salt,))
        while size and end + size <= len(token_ids):
            key = hash((key, tuple(token_ids[end : end + size]), ""))
            blocks = [self._blocks.get(each) for each in tuple(self._hashes.get(key, ()))]
            if not any(block is not None and block.is_reachable for block in blocks):
                break
            end += size
        return end

    def _note(self, event: BlockStored) -> None:
        tokens = [token if isinstance(token, int) else token[0] for token in event.token_ids]
        size, extras = event.block_size, event.extra_keys or [None] * len(event.block_hashes)
        if len(tokens) != size * len(event.block_hashes):
            return
        if event.parent_block_hash is None:
            key: int | None = _namespace(event, extras[0])
        else:
            key = self._keys.get(event.parent_block_hash)
        if key is None:
            return
        for i, block_hash in enumerate(event.block_hashes):
            media = [part for part in extras[i] or () if not isinstance(part, str)]
            own = tuple(tokens[i * size : (i + 1) * size])
            key = hash((key, own, repr(media) if media else ""))
            self._keys[block_hash] = key
            self._hashes.setdefault(key, set()).add(block_hash)


def _namespace(event: BlockStored, extra: list[object] | None) -> int:
    """Read LoRA name and salt: from the first block's extra keys (vLLM), or fields (SGLang)."""
    texts = [part for part in extra or () if isinstance(part, str) and part != event.lora_name]
    if event.cache_salt is not None:
        texts.append(event.cache_salt)
    return _root(event.lora_name, texts)


def _root(lora_name: str | None, salts: Iterable[str]) -> int:
    return hash((lora_name, *salts))
