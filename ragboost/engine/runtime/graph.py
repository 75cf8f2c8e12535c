"""Compute prompts with graphs: fill a request's KV by dependency attention (DepCache), in pieces.

Knows requests and `DepCache`. Does not know text or how steps are planned.
"""

import logging
from collections.abc import Iterable

import torch

from ragboost.chunk_cache.core.prefill import Counts
from ragboost.chunk_cache.model.pace import Pace
from ragboost.chunk_cache.model.request_cache import RequestCache
from ragboost.engine.runtime.chunk_task import RowSelector
from ragboost.engine.runtime.prompt import GraphPrompt
from ragboost.engine.runtime.request import EngineRequest
from ragboost.errors import ChunkCacheError, RagBoostError
from ragboost.graph.depkv import DepCache, DepKV

logger = logging.getLogger(__name__)


class GraphRunner(RowSelector[Counts]):
    """Computes the prompts of graph requests between the steps of one engine, except for their last
    token, the only row that is selected.

    Args:
        depcache: computes subgraphs and keeps their KV.
    """

    def __init__(self, depcache: DepCache) -> None:
        super().__init__()
        self._depcache = depcache

    def look_ahead(self, waiting: Iterable[EngineRequest]) -> None:
        """Let eviction see the graphs of waiting requests; `waiting` is read at each eviction."""
        self._depcache.look_ahead(
            lambda: [(r.prompt.graph.layout, r.salt or "") for r in waiting if r.prompt.graph]
        )

    def _select(self, request: EngineRequest, pace: Pace) -> Counts:
        prompt, kv = request.prompt.graph, request.kv
        assert prompt is not None, "a request without a graph"
        assert kv is not None, "a request without KV"
        count = len(prompt.layout)
        with torch.inference_mode():
            kv.reserve(count)
            own = [(keys[None, :, :count], values[None, :, :count]) for keys, values in kv.layers]
            for keys, values in own:  # masked KV is multiplied by 0 and must be finite
                keys.zero_()
                values.zero_()
            found = self._fill(prompt, RequestCache(own), salt=request.salt or "", pace=pace)
        # No KV here equals that of a plain prefill, in value or in place.
        return Counts(
            num_exact=0,
            num_approximate=found.num_reused,
            num_recomputed=0,
            num_computed=len(found.computed),
            num_publishable=0,
        )

    def _apply(self, request: EngineRequest, selected: Counts) -> None:
        assert request.kv is not None, "a request without KV"
        device = request.kv.layers[0][0].device
        request.compute_rows(torch.tensor([request.num_prompt_tokens - 1], device=device), selected)

    def _refuse(self, request: EngineRequest, error: RagBoostError) -> None:
        raise error  # there is no other way to compute a tree

    def _fill(self, prompt: GraphPrompt, cache: RequestCache, *, salt: str, pace: Pace) -> DepKV:
        ratio = prompt.recompute_ratio
        try:
            return self._depcache.compute_depkv(
                prompt.layout, recompute_ratio=ratio, salt=salt, into=cache, pace=pace
            )
        except ChunkCacheError as error:
            logger.warning("graph tokens are not recomputed: %s", error)
            return self._depcache.compute_depkv(prompt.layout, salt=salt, into=cache, pace=pace)
