"""The uses of vLLM's internals in the scheduler: what a request is, and the hashes of its blocks.

Does not import vLLM. Does not know chunks.
"""

import hashlib
from collections.abc import Iterable
from typing import Any


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


def awaits_blocks(request: Any, held: int, *, block_size: int, others: Iterable[Any]) -> bool:
    """Return True if a pass that has not begun computes some of a request's cached blocks.

    vLLM hashes blocks when it schedules the tokens that fill them, so that the requests of one step
    share them before they are computed. Attention within the pass may; a read before it may not.

    Args:
        request: request about to be scheduled.
        held: tokens that the prefix cache is said to hold of it.
        block_size: tokens of a block.
        others: requests that may be running.
    """
    cached = set(request.block_hashes[: held // block_size])
    return bool(cached) and any(
        # computed by earlier passes   | full blocks of this pass and later ones
        # 0 ........ num_computed_tokens ............ len(block_hashes) * block_size
        not cached.isdisjoint(other.block_hashes[other.num_computed_tokens // block_size :])
        for other in others
        if other.status.name == "RUNNING"  # a preempted or loading one computes nothing
    )


class SaltedHasher:
    """A block hasher that gives the blocks from number `first` on hashes of their own.

    Also blocks that are completed later, by generated tokens, since their hashes chain on.

    Args:
        plain: vLLM's own hasher of the request.
        first: number of the first block that holds approximate KV.
        salt: identity of the approximate KV.
    """

    def __init__(self, plain: Any, *, first: int, salt: bytes) -> None:
        self.plain, self.first, self._salt = plain, first, salt

    def __call__(self, request: Any) -> list[Any]:
        """Return the hashes of the blocks that have none yet."""
        hashes = request.block_hashes
        known = len(hashes)
        fresh = list(self.plain(request))
        place = self.first - known
        if not 0 <= place < len(fresh):
            return fresh
        kept = [*fresh[:place], self._salted(fresh[place])]
        hashes.extend(kept)
        kept.extend(self.plain(request))  # these chain on the salted block
        del hashes[known:]
        return kept

    def _salted(self, plain: Any) -> Any:
        digest = hashlib.sha256(b"ragboost" + self._salt + plain).digest()
        return type(plain)(digest[: len(plain)])


def salt_blocks(request: Any, first: int, *, salt: bytes) -> None:
    """Give the blocks of a request from number `first` on hashes of their own. The blocks before it
    must not be salted; those after it may be."""
    hasher = request._block_hasher
    if hasher is None:  # without a prefix cache
        return
    plain = hasher.plain if isinstance(hasher, SaltedHasher) else hasher
    request._block_hasher = SaltedHasher(plain, first=first, salt=salt)
    del request.block_hashes[first:]
    request.update_block_hashes()
