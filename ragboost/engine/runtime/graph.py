"""Compute prompts with graphs: fill a request's KV by dependency attention (DepCache).

Knows requests and `DepCache`. Does not know text or how steps are planned.
"""

import logging
from collections.abc import Iterable

import torch

from ragboost.chunk_cache.dependency.depkv import DepCache, DepKV
from ragboost.chunk_cache.kv.request_cache import RequestCache
from ragboost.chunk_cache.prefill import Counts
from ragboost.engine.runtime.prompt import GraphPrompt
from ragboost.engine.runtime.request import EngineRequest
from ragboost.errors import ChunkCacheError

logger = logging.getLogger(__name__)


class GraphRunner:
    """Computes the prompts of graph requests in the engine thread.

    Args:
        depcache: computes subgraphs and keeps their KV.
    """

    def __init__(self, depcache: DepCache) -> None:
        self._depcache = depcache

    def look_ahead(self, waiting: Iterable[EngineRequest]) -> None:
        """Let eviction see the graphs of waiting requests; `waiting` is read at each eviction."""
        self._depcache.look_ahead(
            lambda: [(r.prompt.graph.layout, r.salt or "") for r in waiting if r.prompt.graph]
        )

    def compute(self, request: EngineRequest) -> int:
        """Fill in the KV of a request's prompt; the next step computes its last token.

        Returns:
            Number of tokens computed.
        """
        prompt, kv = request.prompt.graph, request.kv
        assert prompt is not None, "a request without a graph"
        assert kv is not None, "a request without KV"
        count = len(prompt.layout)
        kv.reserve(count)
        own = [(keys[None, :, :count], values[None, :, :count]) for keys, values in kv.layers]
        for keys, values in own:  # masked KV is multiplied by 0 and must be finite
            keys.zero_()
            values.zero_()
        found = self._fill(prompt, RequestCache(own), salt=request.salt or "")
        # No KV here equals that of a plain prefill, in value or in place.
        counts = Counts(
            num_exact=0,
            num_approximate=found.num_reused,
            num_recomputed=0,
            num_computed=len(found.computed),
            num_publishable=0,
        )
        request.compute_rows(torch.tensor([count - 1], device=own[0][0].device), counts)
        return len(found.computed) + found.num_recomputed

    def _fill(self, prompt: GraphPrompt, cache: RequestCache, *, salt: str) -> DepKV:
        ratio = prompt.recompute_ratio
        try:
            return self._depcache.compute_depkv(
                prompt.layout, recompute_ratio=ratio, salt=salt, into=cache
            )
        except ChunkCacheError as error:
            logger.warning("graph tokens are not recomputed: %s", error)
            return self._depcache.compute_depkv(prompt.layout, salt=salt, into=cache)
