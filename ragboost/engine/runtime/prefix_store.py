"""The prefix cache with its tensors: loads exact KV into requests and saves theirs."""

from contextlib import ExitStack

from ragboost.engine.runtime.kv import KVLayout, KVPool
from ragboost.engine.runtime.prefix_cache import BlockCache
from ragboost.engine.runtime.request import EngineRequest


class PrefixStore:
    def __init__(self, layout: KVLayout, *, capacity_tokens: int, block_size: int) -> None:
        num_blocks = capacity_tokens // block_size
        self.cache = BlockCache(num_blocks, block_size)
        self.block_size = block_size
        self.queried_tokens = self.hit_tokens = 0  # prompt tokens looked up, and found
        self._pool = KVPool(layout, num_blocks, block_size)

    @property
    def usage(self) -> float:
        return len(self.cache) / self.cache.num_blocks

    def load(self, request: EngineRequest) -> None:
        """Load and hold the cached blocks that continue the computed part of a prompt, if all of it
        is exact. Its tokens from the first that is wanted with logits on remain to be computed."""
        start = len(request.held)
        if request.num_computed != start * self.block_size or request.exact_until is not None:
            return
        most = request.first_logits // self.block_size
        keys = request.block_keys(most, self.block_size)
        blocks = self.cache.match(keys[start:])
        if not blocks:
            return
        if start and not self.cache.holds(request.held[-1]):  # cleared since, then stored again
            return
        assert request.kv is not None, "load before the request has KV"
        self.cache.acquire(blocks)
        request.held += blocks  # before the copy, which may fail: `release` frees them
        self._pool.load([b.slot for b in blocks], request.kv, start=request.num_computed)
        tokens = len(blocks) * self.block_size
        request.num_computed += tokens
        request.cached_tokens += tokens
        self.hit_tokens += tokens

    def save(self, request: EngineRequest) -> None:
        """Store all full blocks computed since the last call, as far as there is room."""
        start, end = len(request.held), request.num_computed
        if request.exact_until is not None:
            end = min(end, request.exact_until)
        full = end // self.block_size
        if start >= full:
            return
        assert request.kv is not None, "save after the request has ended"
        inserted = self.cache.insert(
            request.block_keys(full, self.block_size)[start:],
            request.token_ids[start * self.block_size : full * self.block_size],
            parent=request.held[-1] if request.held else None,
            salt=request.salt,
            session_id=request.session_id,
        )
        request.held += inserted.blocks
        if new := inserted.blocks[inserted.num_found :]:
            position = (start + inserted.num_found) * self.block_size
            with ExitStack() as on_failure:  # no block may stay without its KV
                on_failure.callback(self.cache.clear)
                self._pool.store([block.slot for block in new], request.kv, start=position)
                on_failure.pop_all()

    def release(self, request: EngineRequest) -> None:
        self.cache.release(request.held)
        request.held = []
        request.kv = None
