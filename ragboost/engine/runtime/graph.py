"""Compute prompts with graphs by dependency attention (DepCache), in pieces."""

from collections.abc import Iterable

from ragboost.chunk_cache.core.token_origins import TokenOrigins
from ragboost.chunk_cache.model.pace import Pace, Steps
from ragboost.chunk_cache.model.request_cache import RequestCache
from ragboost.engine.runtime.filling import PromptFiller
from ragboost.engine.runtime.request import EngineRequest
from ragboost.errors import RagBoostError
from ragboost.graph.depcache import DepCache, DepKV


class GraphRunner(PromptFiller[DepKV]):
    """Computes the prompts of graph requests, except for their last token."""

    def __init__(self, depcache: DepCache) -> None:
        super().__init__()
        self._depcache = depcache

    def look_ahead(self, waiting: Iterable[EngineRequest]) -> None:
        self._depcache.look_ahead(
            lambda: [(r.prompt.graph, r.salt or "") for r in waiting if r.prompt.graph]
        )

    def renew(self) -> None:
        """Forget the KV of former weights."""
        if self._depcache.tree is not None:
            self._depcache.tree.clear()

    def begin(self, request: EngineRequest, pace: Pace) -> Steps[DepKV]:
        layout, kv, salt = request.prompt.graph, request.kv, request.salt or ""
        assert layout is not None, "a request without a graph"
        assert kv is not None, "a request without KV"
        count = len(layout)
        kv.reserve(count)
        own = [(keys[None, :, :count], values[None, :, :count]) for keys, values in kv.layers]
        for keys, values in own:  # masked KV is multiplied by 0 and must be finite
            keys.zero_()
            values.zero_()
        return (
            yield from self._depcache.steps(layout, salt=salt, into=RequestCache(own), pace=pace)
        )

    def apply(self, request: EngineRequest, result: DepKV) -> None:
        # No KV here equals that of a plain prefill, in value or in place.
        origins = TokenOrigins(reused=result.num_reused, computed=len(result.computed))
        request.continue_at(request.num_prompt_tokens - 1, origins, exact_until=0)

    def refuse(self, request: EngineRequest, error: RagBoostError) -> None:
        raise error  # there is no other way to compute a tree
