"""Compute prompts with graphs: fill a request's KV by dependency attention (DepCache), in pieces.

Knows requests and `DepCache`. Does not know text or how steps are planned.
"""

import logging
from collections.abc import Iterable

from ragboost.chunk_cache.core.token_origins import TokenOrigins
from ragboost.chunk_cache.model.pace import Pace, Steps
from ragboost.chunk_cache.model.request_cache import RequestCache
from ragboost.engine.runtime.filling import PromptFiller
from ragboost.engine.runtime.prompt import GraphPrompt
from ragboost.engine.runtime.request import EngineRequest
from ragboost.errors import ChunkCacheError, RagBoostError
from ragboost.graph.depkv import DepCache, DepKV

logger = logging.getLogger(__name__)


class GraphRunner(PromptFiller[TokenOrigins]):
    """Computes the prompts of graph requests between the steps of one engine, except for their last
    token.

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

    def begin(self, request: EngineRequest, pace: Pace) -> Steps[TokenOrigins]:
        prompt, kv = request.prompt.graph, request.kv
        assert prompt is not None, "a request without a graph"
        assert kv is not None, "a request without KV"
        count = len(prompt.layout)
        kv.reserve(count)
        own = [(keys[None, :, :count], values[None, :, :count]) for keys, values in kv.layers]
        for keys, values in own:  # masked KV is multiplied by 0 and must be finite
            keys.zero_()
            values.zero_()
        found = yield from self._fill(
            prompt, RequestCache(own), salt=request.salt or "", pace=pace
        )
        return TokenOrigins(reused=found.num_reused, computed=len(found.computed))

    def apply(self, request: EngineRequest, result: TokenOrigins) -> None:
        # No KV here equals that of a plain prefill, in value or in place.
        request.continue_at(request.num_prompt_tokens - 1, result, exact_until=0)

    def refuse(self, request: EngineRequest, error: RagBoostError) -> None:
        raise error  # there is no other way to compute a tree

    def _fill(
        self, prompt: GraphPrompt, cache: RequestCache, *, salt: str, pace: Pace
    ) -> Steps[DepKV]:
        ratio, layout = prompt.recompute_ratio, prompt.layout
        try:
            return (
                yield from self._depcache.compute_steps(
                    layout, recompute_ratio=ratio, salt=salt, into=cache, pace=pace
                )
            )
        except ChunkCacheError as error:
            logger.warning("graph tokens are not recomputed: %s", error)
            return (
                yield from self._depcache.compute_steps(layout, salt=salt, into=cache, pace=pace)
            )
