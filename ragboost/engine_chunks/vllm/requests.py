"""The uses of vLLM's internals in the scheduler: what a request is, and the hashes of its blocks.

Does not import vLLM. Does not know chunks.
"""

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from ragboost.bounded_map import BoundedMap


def request_refusal(request: Any) -> str | None:
    """Return why reuse is impossible for a request; None if it is possible."""
    sampling = request.sampling_params
    refused = {
        "pooling_model": sampling is None,
        "prompt_logprobs": sampling is not None and sampling.prompt_logprobs is not None,
        "no_prefix_cache": request.skip_reading_prefix_cache,
        "multimodal": bool(request.mm_features),
        "prompt_embeddings": request.prompt_token_ids is None or request.prompt_embeds is not None,
    }
    return next((reason for reason, is_refused in refused.items() if is_refused), None)


class SaltedHasher:
    """A block hasher that gives the blocks from number `first` on hashes of their own.

    Also blocks that are completed later, by generated tokens, since their hashes chain on.

    Args:
        plain: vLLM's own hasher of the request.
        first: number of the first block that holds approximate KV.
        salt: identity of the approximate KV.
        note: called with the hashes that it makes of approximate blocks.
    """

    def __init__(
        self, plain: Any, *, first: int, salt: bytes, note: Callable[[Sequence[Any]], None]
    ) -> None:
        self.plain, self.first = plain, first
        self._salt, self._note = salt, note

    def __call__(self, request: Any) -> list[Any]:
        """Return the hashes of the blocks that have none yet."""
        hashes = request.block_hashes
        known = len(hashes)
        fresh = list(self.plain(request))
        place = self.first - known
        if place >= len(fresh):
            return fresh
        if place < 0:
            self._note(fresh)
            return fresh
        kept = [*fresh[:place], self._salted(fresh[place])]
        hashes.extend(kept)
        kept.extend(self.plain(request))  # these chain on the salted block
        del hashes[known:]
        self._note(kept[place:])
        return kept

    def _salted(self, plain: Any) -> Any:
        digest = hashlib.sha256(b"ragboost" + self._salt + plain).digest()
        return type(plain)(digest[: len(plain)])


def salt_blocks(
    request: Any, first: int, *, salt: bytes, note: Callable[[Sequence[Any]], None]
) -> None:
    """Give the blocks of a request from number `first` on hashes of their own. The blocks before it
    must not be salted; those after it may be.

    Args:
        request: vLLM's request.
        first: number of the first block that holds approximate KV.
        salt: identity of the approximate KV.
        note: called with the hashes of approximate blocks, now and later.
    """
    hasher = request._block_hasher
    if hasher is None:  # without a prefix cache
        return
    plain = hasher.plain if isinstance(hasher, SaltedHasher) else hasher
    request._block_hasher = SaltedHasher(plain, first=first, salt=salt, note=note)
    del request.block_hashes[first:]
    request.update_block_hashes()


class ApproximateBlocks:
    """The hashes of blocks with approximate KV, which nobody outside may take for exact ones.

    Args:
        max_blocks: hashes kept; more than the cache has blocks.
    """

    def __init__(self, max_blocks: int) -> None:
        self._hashes: BoundedMap[Any, bool] = BoundedMap(max_entries=max_blocks)

    def add(self, hashes: Sequence[Any]) -> None:
        """Note the hashes of approximate blocks."""
        for block_hash in hashes:
            self._hashes.put(block_hash, True)

    def hide(self, events: Sequence[Any], convert: Callable[[Any], Any]) -> list[Any]:
        """Return cache events without these blocks.

        Args:
            events: vLLM's events of one step.
            convert: turns a hash into its form in events.
        """
        if not len(self._hashes):
            return list(events)
        hidden = {convert(block_hash) for block_hash in self._hashes}
        visible = []
        for event in events:
            hashes = getattr(event, "block_hashes", None)
            if hashes is None:  # all blocks were cleared
                visible.append(event)
                continue
            # Approximate blocks are the end of a chain.
            exact = [block_hash for block_hash in hashes if block_hash not in hidden]
            if len(exact) == len(hashes):
                visible.append(event)
            elif exact:
                visible.append(_shortened(event, exact))
        return visible


def _shortened(event: Any, hashes: list[Any]) -> Any:
    changes: dict[str, Any] = {"block_hashes": hashes}
    if hasattr(event, "token_ids"):
        changes["token_ids"] = event.token_ids[: len(hashes) * event.block_size]
        if event.extra_keys is not None:
            changes["extra_keys"] = event.extra_keys[: len(hashes)]
    return msgspec.structs.replace(event, **changes)
